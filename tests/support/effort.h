/* effort.h - how much of a test is worth its time in this build. ThreadSanitizer looks for races,
 * of which one instruction set and one number of threads have as many as all of them. */
#ifndef EFFORT_H
#define EFFORT_H

#ifdef __SANITIZE_THREAD__
#define ONLY_RACES 1
#else
#define ONLY_RACES 0
#endif

#endif
