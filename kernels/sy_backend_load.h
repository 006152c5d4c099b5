/* sy_backend_load.h - finds, loads and checks a device backend's plugin (cuda/sy_backend.h). What
 * is loaded stays for the life of the process. Any thread. */
#ifndef SY_BACKEND_LOAD_H
#define SY_BACKEND_LOAD_H

#include "cuda/sy_backend.h"
#include "sy_status.h"

/* A folder where plugins are looked for first; an absolute path. */
#define SY_BACKEND_DIR_VARIABLE "SWITCHYARD_BACKEND_DIR"

/* libswitchyard_NAME.so of the first of these folders that has one: $SWITCHYARD_BACKEND_DIR,
 * ../lib/switchyard beside the program's folder, and the library folder of the installation; never
 * the working directory or the loader's path. One that is there and does not load is an error: no
 * other is tried. *out lives as long as the process. Otherwise *out is NULL and the reason is:
 * BACKEND_NOT_FOUND (SY_ENOTFOUND) no folder has it, each is named;
 * BACKEND_NOT_LOADABLE (SY_EPRECONDITION) the dynamic loader refuses it, in its words;
 * BACKEND_MISMATCH (SY_EPRECONDITION) it is no backend, or was built for another Switchyard;
 * SY_EINVAL: $SWITCHYARD_BACKEND_DIR is not absolute. */
SY_MUST_USE sy_status sy_backend_load(const sy_backend **out, const char *name, sy_error *err);

/* The same for one file; path has a slash, so that nothing is searched. */
SY_MUST_USE sy_status sy_backend_load_file(const sy_backend **out, const char *path,
                                           const char *name, sy_error *err);

/* A failed call's result as a status: SY_EUNAVAILABLE for no device and for a device that is lost,
 * SY_EINVAL, SY_ENOMEM, else SY_EIO. */
sy_status sy_backend_status(int result);

#endif
