/* sy_chat_load.h - between the files that load a chat template and those that interpret it. Private
 * to sy_chat*.c. */
#ifndef SY_CHAT_LOAD_H
#define SY_CHAT_LOAD_H

#include "sy_chat.h"

/* A variable that every rendering has unless its caller gives another of that name. Both texts are
 * copied. Before the template is shared between threads. */
SY_MUST_USE sy_status sy_chat_add_special(sy_chat *chat, const char *name, const char *text,
                                          sy_error *err);

#endif
