/* Median and spread of repeated measurements. Pure; sorts the caller's array; cannot fail. */
#ifndef MF_PROFILER_STATISTICS_H
#define MF_PROFILER_STATISTICS_H

#include <stdint.h>

/* Sorts `values` (count > 0); the middle one, or the mean of the two in the middle. */
double mf_statistics_median(double *values, int32_t count);
/* Sorts `values` (count > 0); the lower quartile: of repeats that other programs disturb, one that
 * they hardly did. */
double mf_statistics_low(double *values, int32_t count);
/* Median absolute deviation from `median`; overwrites `values` by the sorted deviations. */
double mf_statistics_spread(double *values, int32_t count, double median);

#endif
