/* The metrics file: see metrics.h. */
#include "server/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/files.h"

struct mf_metrics {
    char *path;
    int file;
};

/* The part of the file that a resumed run keeps: whole lines of steps up to `step`. */
static size_t kept_bytes(const char *text, size_t count, int64_t step)
{
    size_t kept = 0;
    while (kept < count) {
        const char *end = memchr(text + kept, '\n', count - kept);
        if (end == NULL) {
            break;
        }
        json_t *line = json_loadb(text + kept, (size_t)(end - text) - kept, 0, NULL);
        const json_t *number = json_object_get(line, "step");
        bool keep = json_is_integer(number) && json_integer_value(number) <= step;
        json_decref(line);
        if (!keep) {
            break;
        }
        kept = (size_t)(end - text) + 1;
    }
    return kept;
}

static enum mf_status cut(const char *path, int64_t step)
{
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return errno == ENOENT ? MF_STATUS_OK : mf_files_failed(errno, "read", path);
    }
    char *text = NULL;
    size_t size = 0;
    ssize_t count = getdelim(&text, &size, '\0', file);
    fclose(file);
    enum mf_status status = count <= 0
                                ? MF_STATUS_OK
                                : mf_files_write(path, text, kept_bytes(text, (size_t)count, step));
    free(text);
    return status;
}

enum mf_status mf_metrics_open(const char *folder, int64_t resume_step, struct mf_metrics **out)
{
    struct mf_metrics *metrics = calloc(1, sizeof(*metrics));
    MF_ASSERT(metrics != NULL && asprintf(&metrics->path, "%s/metrics.jsonl", folder) > 0);
    enum mf_status status = cut(metrics->path, resume_step);
    metrics->file = -1;
    if (status == MF_STATUS_OK) {
        metrics->file = open(metrics->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
        if (metrics->file < 0) {
            status = mf_files_failed(errno, "write", metrics->path);
        }
    }
    if (status != MF_STATUS_OK) {
        mf_metrics_close(metrics);
        return status;
    }
    *out = metrics;
    return MF_STATUS_OK;
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

enum mf_status mf_metrics_append(struct mf_metrics *metrics, const struct mf_metrics_step *step)
{
    json_t *line = json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:I, s:I, s:o, s:b, s:b}", "step",
        (json_int_t)step->step, "epoch", number(step->epoch), "loss", number(step->loss),
        "grad_norm", number(step->grad_norm), "learning_rate", number(step->learning_rate),
        "step_time_ms", number(step->step_time_ms), "tokens_per_second",
        number(step->tokens_per_second), "h2d_bytes", (json_int_t)step->h2d_bytes, "d2h_bytes",
        (json_int_t)step->d2h_bytes, "dha_bytes", (json_int_t)step->dha_bytes, "stall_ms",
        number(step->stall_ms), "hbm_peak_bytes", (json_int_t)step->hbm_peak_bytes, "pinned_bytes",
        (json_int_t)step->pinned_bytes, "predicted_step_ms", number(step->predicted_step_ms),
        "skipped", step->skipped, "redone", step->redone);
    MF_ASSERT(line != NULL);
    if (isfinite(step->eval_loss)) {
        MF_ASSERT(json_object_set_new(line, "eval_loss", json_real(step->eval_loss)) == 0);
    }
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9));
    MF_ASSERT(text != NULL);
    size_t count = strlen(text);
    text[count] = '\n'; /* in the NUL's place: one write, one line */
    off_t end = lseek(metrics->file, 0, SEEK_END);
    enum mf_status status = mf_files_write_all(metrics->file, text, count + 1, metrics->path);
    if (status != MF_STATUS_OK && end >= 0 && ftruncate(metrics->file, end) != 0) {
        status = mf_status_context(status, "half a line is left");
    }
    free(text);
    json_decref(line);
    return status;
}

void mf_metrics_close(struct mf_metrics *metrics)
{
    if (metrics == NULL) {
        return;
    }
    if (metrics->file >= 0) {
        close(metrics->file);
    }
    free(metrics->path);
    free(metrics);
}
