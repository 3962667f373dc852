/* The line of one optimizer step, in the shape of llm.c: see render.h. */
#include "client/render.h"

void mf_render_step(const Memferry__V1__StepReport *step, FILE *out)
{
    fprintf(out, "step %lld/%lld | loss %.4f", (long long)step->step, (long long)step->steps_total,
            step->loss);
    if (step->validation_loss > 0) {
        fprintf(out, " | validation %.4f", step->validation_loss);
    }
    fprintf(out, " | norm %.2f | lr %.1e | %.1f ms | %.0f tok/s", step->grad_norm,
            step->learning_rate, step->step_ms, step->tokens_per_second);
    if (step->stall > 0) {
        fprintf(out, " | stall %.1f%%", 100 * step->stall);
    }
    if (step->skipped) {
        fputs(" | skipped: the gradient is not finite", out);
    }
}
