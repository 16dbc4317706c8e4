/* A clock for LD_PRELOAD: SOAK_CLOCK=backwards runs backwards, past is before 1970, jumps goes to and fro by a day. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static time_t began;

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    const char *how = getenv("SOAK_CLOCK");
    if (code || clock != CLOCK_REALTIME || !how) return code;
    if (!began) began = now->tv_sec;
    if (!strcmp(how, "backwards")) now->tv_sec = 2 * began - now->tv_sec;
    if (!strcmp(how, "past")) now->tv_sec -= 80L * 366 * 86400;
    if (!strcmp(how, "jumps") && now->tv_sec / 2 % 2) now->tv_sec -= 86400;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
