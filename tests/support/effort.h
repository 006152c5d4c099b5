/* effort.h - how much of a test is worth its time in this build. ThreadSanitizer looks for races,
 * of which one instruction set and one number of threads have as many as all of them;
 * AddressSanitizer for accesses, which a value that is merely another one does not change. */
#ifndef EFFORT_H
#define EFFORT_H

#ifdef __SANITIZE_THREAD__
#define ONLY_RACES 1
#else
#define ONLY_RACES 0
#endif
#ifdef __SANITIZE_ADDRESS__
#define ONLY_ACCESSES 1
#else
#define ONLY_ACCESSES 0
#endif

#endif
