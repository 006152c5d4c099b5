/* sy_fault.h - named places where tests make things go wrong. Off unless SY_FAULT is set in the
 * environment: SY_FAULT="expert.compute:3,router.reply:always" - the third pass fails, or every
 * pass. One relaxed load when off. */
#ifndef SY_FAULT_H
#define SY_FAULT_H

#include "sy_base.h"

int sy_fault_hit(const char *point); /* true when this pass must fail */

#endif
