/* Median and spread: see statistics.h. */
#include "profiler/statistics.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a;
    double right = *(const double *)b;
    return (left > right) - (left < right);
}

double mf_statistics_median(double *values, int32_t count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    double upper = values[count / 2];
    return count % 2 == 1 ? upper : (values[count / 2 - 1] + upper) / 2;
}

double mf_statistics_low(double *values, int32_t count)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[count / 4];
}

double mf_statistics_spread(double *values, int32_t count, double median)
{
    for (int32_t i = 0; i < count; i++) {
        values[i] = fabs(values[i] - median);
    }
    return mf_statistics_median(values, count);
}
