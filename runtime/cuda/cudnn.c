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

enum wish { WISH_AUTO, WISH_OWN, WISH_CUDNN };

static enum mf_status read_wish(enum wish *out)
{
    static const char *const words[] = {
        [WISH_AUTO] = "auto", [WISH_OWN] = "own", [WISH_CUDNN] = "cudnn"};
    const char *word = getenv("MEMFERRY_ATTENTION");
    *out = WISH_AUTO;
    if (word == NULL || word[0] == '\0') {
        return MF_STATUS_OK;
    }
    for (int index = WISH_AUTO; index <= WISH_CUDNN; index++) {
        if (strcmp(word, words[index]) == 0) {
            *out = (enum wish)index;
            return MF_STATUS_OK;
        }
    }
    return mf_status_set(MF_STATUS_INVALID,
                         "MEMFERRY_ATTENTION=%.40s: it may be auto, own or cudnn", word);
}

enum mf_status mf_cuda_cudnn_open(const struct mf_cuda_context *context,
                                  enum mf_status (*drain)(void *lanes), void *lanes,
                                  struct mf_cuda_cudnn **out)
{
    enum wish wish;
    *out = NULL;
    MF_TRY(read_wish(&wish));
    struct mf_cuda_cudnn *cudnn = calloc(1, sizeof(*cudnn));
    if (cudnn == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the choice of attention");
    }
    *out = cudnn;
    if (wish == WISH_OWN) {
        snprintf(cudnn->why, sizeof(cudnn->why), "MEMFERRY_ATTENTION=own");
        return MF_STATUS_OK;
    }
    if (wish == WISH_AUTO && mf_flash_supported(128)) {
        snprintf(cudnn->why, sizeof(cudnn->why), "they were written for this GPU");
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_cuda_cudnn_plans_open(context->stream, drain, lanes, &cudnn->plans);
    if (status != MF_STATUS_OK && wish == WISH_AUTO) {
        snprintf(cudnn->why, sizeof(cudnn->why), "%s", mf_status_text());
        return MF_STATUS_OK;
    }
    snprintf(cudnn->why, sizeof(cudnn->why), "%s",
             wish == WISH_CUDNN ? "MEMFERRY_ATTENTION=cudnn" : "not a Hopper GPU");
    return status == MF_STATUS_OK ? MF_STATUS_OK
                                  : mf_status_context(status, "MEMFERRY_ATTENTION=cudnn");
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
