/*
 * Random initialisation by counter: see mf_weights_init_unit() in weights.h. The normal deviate is
 * Wichura's AS 241 (Applied Statistics 37, 1988) of a 32-bit uniform number: no state, no
 * rejection, and only the outer 15% of numbers need a logarithm.
 */
#include <math.h>

#include "runtime/host/bf16.h"
#include "runtime/weights.h"
#include "runtime/weights_layout.h"

/* SplitMix64's output function. */
static uint64_t mix(uint64_t value)
{
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* FNV-1a of the name, mixed with the seed. */
static uint64_t tensor_key(uint64_t seed, const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (; *name != '\0'; name++) {
        hash = (hash ^ (unsigned char)*name) * 0x100000001b3u;
    }
    return mix(mix(seed + 0x9e3779b97f4a7c15u) ^ hash);
}

/* p(x) / q(x) of degree 7; coefficients from the constant term up. */
static double ratio(const double p[static 8], const double q[static 8], double x)
{
    double upper = p[7];
    double lower = q[7];
    for (int i = 6; i >= 0; i--) {
        upper = upper * x + p[i];
        lower = lower * x + q[i];
    }
    return upper / lower;
}

/* The normal deviate below which a part `uniform` of (0, 1) lies: AS 241, routine PPND16. */
static double normal_quantile(double uniform)
{
    static const double a[8] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                1.9715909503065514427e3, 1.3731693765509461125e4,
                                4.5921953931549871457e4, 6.7265770927008700853e4,
                                3.3430575583588128105e4, 2.5090809287301226727e3};
    static const double b[8] = {1.0,
                                4.2313330701600911252e1,
                                6.8718700749205790830e2,
                                5.3941960214247511077e3,
                                2.1213794301586595867e4,
                                3.9307895800092710610e4,
                                2.8729085735721942674e4,
                                5.2264952788528545610e3};
    static const double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                5.76949722146069140550e0,  3.64784832476320460504e0,
                                1.27045825245236838258e0,  2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
    static const double e[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                1.78482653991729133580e0,  2.96560571828504891230e-1,
                                2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[8] = {1.0,
                                5.99832206555887937690e-1,
                                1.36929880922735805310e-1,
                                1.48753612908506148525e-2,
                                7.86869131145613259100e-4,
                                1.84631831751005468180e-5,
                                1.42151175831644588870e-7,
                                2.04426310338993978564e-15};
    double q = uniform - 0.5;
    if (fabs(q) <= 0.425) {
        return q * ratio(a, b, 0.180625 - q * q);
    }
    double r = sqrt(-log(q < 0 ? uniform : 1.0 - uniform));
    double magnitude = r <= 5.0 ? ratio(c, d, r - 1.6) : ratio(e, f, r - 5.0);
    return q < 0 ? -magnitude : magnitude;
}

/* Element `index` of the tensor: one 64-bit number serves two elements. */
static float draw(uint64_t key, int64_t index, double deviation)
{
    uint64_t pair = mix(key + (uint64_t)(index >> 1) * 0x9e3779b97f4a7c15u);
    uint32_t bits = (uint32_t)(index & 1 ? pair >> 32 : pair);
    double value = normal_quantile(((double)bits + 0.5) * 0x1p-32) * deviation;
    return mf_bf16_to_float(mf_bf16_from_float((float)value));
}

void mf_weights_init_rows(const struct mf_model *model, int32_t unit_index, uint64_t seed,
                          int64_t first, int64_t end, float *master)
{
    const struct mf_unit *unit = &model->units[unit_index];
    MF_ASSERT(unit->owner == unit_index);
    uint64_t key = tensor_key(seed, unit->weight.name);
    for (int64_t row = first; row < end; row++) {
        float *out = master + mf_weights_layout_offset(unit, row, 0);
        for (int64_t column = 0; column < unit->columns; column++) {
            out[column] = unit->weight.init_std > 0
                              ? draw(key, row * unit->columns + column, unit->weight.init_std)
                              : unit->weight.init_value;
        }
    }
    if (unit->bias.name == NULL) {
        return;
    }
    key = tensor_key(seed, unit->bias.name);
    for (int64_t row = first; row < end; row++) {
        master[mf_weights_layout_bias_offset(unit, row)] =
            unit->bias.init_std > 0 ? draw(key, row, unit->bias.init_std) : unit->bias.init_value;
    }
}

void mf_weights_init_unit(const struct mf_model *model, int32_t unit_index, uint64_t seed,
                          float *master)
{
    const struct mf_unit *unit = &model->units[unit_index];
    for (int64_t i = 0; i < unit->elements; i++) {
        master[i] = 0;
    }
    mf_weights_init_rows(model, unit_index, seed, 0, unit->rows, master);
}
