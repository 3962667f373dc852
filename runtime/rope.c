/*
 * Rotary embedding angles: see rope.h. Frequencies are theta^(-2i/d), rounded to fp32 as in
 * Transformers (modeling_rope_utils.py), which also gives the Llama 3 scaling: long waves are
 * slowed down by `factor`, short ones kept, those between blended.
 */
#include "runtime/rope.h"

#include <math.h>

static double scaled(const struct mf_rope *rope, double frequency)
{
    if (!rope->llama3) {
        return frequency;
    }
    double positions = (double)rope->original_positions;
    double wavelength = 2 * M_PI / frequency;
    if (wavelength < positions / rope->high_freq_factor) {
        return frequency;
    }
    if (wavelength > positions / rope->low_freq_factor) {
        return frequency / rope->factor;
    }
    double smooth = (positions / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - smooth) * frequency / rope->factor + smooth * frequency;
}

void mf_rope_table(const struct mf_model *model, int64_t seq_len, float *out)
{
    int64_t half = model->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double exponent = -2.0 * (double)i / (double)model->head_dim;
        float frequency = (float)scaled(&model->rope, pow(model->rope.theta, exponent));
        for (int64_t position = 0; position < seq_len; position++) {
            double angle = (float)position * frequency;
            out[(position * half + i) * 2] = (float)cos(angle);
            out[(position * half + i) * 2 + 1] = (float)sin(angle);
        }
    }
}
