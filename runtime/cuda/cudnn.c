/* The choice; see cudnn.h. */
#include "runtime/cuda/cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/cuda/cudnn_plans.h"
#include "runtime/cuda/flash.h"

struct mf_cuda_cudnn {
    struct mf_cuda_cudnn_plans *plans; /* NULL: never asked */
    char why[320];
};

static const struct wish {
    const char *word;
    bool ask;  /* cuDNN */
    bool must; /* fail without it */
    enum mf_cuda_attention best;
} wishes[] = {
    {"auto", true, false, MF_CUDA_ATTENTION_HOPPER},
    {"own", false, false, MF_CUDA_ATTENTION_HOPPER},
    {"cudnn", true, true, MF_CUDA_ATTENTION_HOPPER},
    {"tiles", false, false, MF_CUDA_ATTENTION_TILES},
    {"plain", false, false, MF_CUDA_ATTENTION_PLAIN},
};

static enum mf_status read_wish(const struct wish **out)
{
    const char *word = getenv("MEMFERRY_ATTENTION");
    *out = &wishes[0];
    if (word == NULL || word[0] == '\0') {
        return MF_STATUS_OK;
    }
    for (size_t index = 0; index < sizeof(wishes) / sizeof(wishes[0]); index++) {
        if (strcmp(word, wishes[index].word) == 0) {
            *out = &wishes[index];
            return MF_STATUS_OK;
        }
    }
    return mf_status_set(MF_STATUS_INVALID,
                         "MEMFERRY_ATTENTION=%.40s: it may be auto, own, cudnn, tiles or plain",
                         word);
}

/* Asks cuDNN where that is wished; what is said of it in `why`. */
static enum mf_status ask(struct mf_cuda_cudnn *cudnn, const struct wish *wish, cudaStream_t stream,
                          enum mf_status (*drain)(void *lanes), void *lanes)
{
    if (!wish->must && mf_flash_supported(128)) {
        snprintf(cudnn->why, sizeof(cudnn->why), "they were written for this GPU");
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_cuda_cudnn_plans_open(stream, drain, lanes, &cudnn->plans);
    if (status == MF_STATUS_OK) {
        snprintf(cudnn->why, sizeof(cudnn->why), "%s",
                 wish->must ? "MEMFERRY_ATTENTION=cudnn" : "not a Hopper GPU");
        return MF_STATUS_OK;
    }
    snprintf(cudnn->why, sizeof(cudnn->why), "%s", mf_status_text());
    return wish->must ? mf_status_context(status, "MEMFERRY_ATTENTION=cudnn") : MF_STATUS_OK;
}

enum mf_status mf_cuda_cudnn_open(struct mf_cuda_context *context,
                                  enum mf_status (*drain)(void *lanes), void *lanes,
                                  struct mf_cuda_cudnn **out)
{
    const struct wish *wish = NULL;
    *out = NULL;
    MF_TRY(read_wish(&wish));
    struct mf_cuda_cudnn *cudnn = calloc(1, sizeof(*cudnn));
    if (cudnn == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the choice of attention");
    }
    *out = cudnn;
    context->attention = wish->best;
    if (wish->ask) {
        return ask(cudnn, wish, context->stream, drain, lanes);
    }
    snprintf(cudnn->why, sizeof(cudnn->why), "MEMFERRY_ATTENTION=%s", wish->word);
    return MF_STATUS_OK;
}

void mf_cuda_cudnn_close(struct mf_cuda_cudnn *cudnn)
{
    if (cudnn != NULL) {
        mf_cuda_cudnn_plans_close(cudnn->plans);
        free(cudnn);
    }
}

bool mf_cuda_cudnn_run(struct mf_cuda_cudnn *cudnn, const struct mf_cuda_context *context,
                       const struct mf_kernel_call *call)
{
    return cudnn != NULL && cudnn->plans != NULL &&
           mf_cuda_cudnn_plans_run(cudnn->plans, context, call);
}

const char *mf_cuda_cudnn_version(const struct mf_cuda_cudnn *cudnn)
{
    return cudnn->plans != NULL ? mf_cuda_cudnn_plans_version(cudnn->plans) : "";
}

void mf_cuda_cudnn_text(const struct mf_cuda_cudnn *cudnn, char *out, size_t size)
{
    if (cudnn->plans == NULL) {
        snprintf(out, size, "own kernels: %s", cudnn->why);
        return;
    }
    const char *refused = mf_cuda_cudnn_plans_refused(cudnn->plans);
    snprintf(out, size, "%s (%s), own kernels where it does not take a shape%s%s",
             mf_cuda_cudnn_plans_version(cudnn->plans), cudnn->why,
             refused[0] != '\0' ? "; last: " : "", refused);
}
