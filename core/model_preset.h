/*
 * Presets: configs of well-known models by name, shapes only.
 *
 * Who calls it: model.c. Owner: constant data. Thread: any. Fails: no.
 */
#ifndef MF_CORE_MODEL_PRESET_H
#define MF_CORE_MODEL_PRESET_H

#include <stddef.h>

/* The config's JSON text; NULL when there is no preset of that name. */
const char *mf_model_preset_config(const char *name);
/* All names; NULL at the end; `count` (may be NULL) without it. */
const char *const *mf_model_preset_names(size_t *count);

#endif
