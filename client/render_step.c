/* The line of one optimizer step, in the shape of llm.c: see render.h. */
#include <stdlib.h>
#include <string.h>

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

/* A sample has lines of its own: they stay, other control characters do not. */
void mf_render_step_sample(const char *text, FILE *out)
{
    fputs("sample:\n", out);
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        char *part = strndup(text, length);
        MF_ASSERT(part != NULL);
        fputs("  | ", out);
        mf_table_print_text(part, out);
        fputc('\n', out);
        free(part);
        text += length + (text[length] == '\n');
    }
}
