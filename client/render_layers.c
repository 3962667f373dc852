/* Units that differ only in their layer, as one name: see render.h. */
#include <stdlib.h>
#include <string.h>

#include "client/render.h"

#define NONE (-1)

/* "model.layers.3.self_attn.q_proj" is unit "self_attn.q_proj" of layer 3 of "model.layers.". */
static void take_apart(const char *name, struct mf_render_layers *out)
{
    out->name = name;
    out->prefix = strlen(name);
    out->layer = NONE;
    out->suffix = "";
    for (const char *dot = strchr(name, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        size_t digits = strspn(dot + 1, "0123456789");
        if (digits > 0 && digits < 7 && dot[1 + digits] == '.') {
            out->prefix = (size_t)(dot + 1 - name);
            out->layer = (int)strtol(dot + 1, NULL, 10);
            out->suffix = dot + 1 + digits + 1;
            return;
        }
    }
}

int mf_render_layers_number(const char *name)
{
    struct mf_render_layers parts;
    take_apart(name, &parts);
    return parts.layer;
}

void mf_render_layers_begin(struct mf_render_layers *layers, const char *name)
{
    memset(layers, 0, sizeof(*layers));
    take_apart(name, layers);
    mf_render_layers_add(layers, name);
}

bool mf_render_layers_same(const struct mf_render_layers *layers, const char *name)
{
    struct mf_render_layers parts;
    take_apart(name, &parts);
    return parts.layer != NONE && layers->layer != NONE && parts.prefix == layers->prefix &&
           strncmp(layers->name, name, parts.prefix) == 0 &&
           strcmp(parts.suffix, layers->suffix) == 0;
}

void mf_render_layers_add(struct mf_render_layers *layers, const char *name)
{
    int layer = mf_render_layers_number(name);
    int last = layers->range_count - 1;
    layers->count++;
    if (last >= 0 && last < MF_RENDER_LAYERS_RANGES_MAX && layers->last[last] == layer - 1) {
        layers->last[last] = layer;
        return;
    }
    layers->range_count++;
    if (layers->range_count <= MF_RENDER_LAYERS_RANGES_MAX) {
        layers->first[last + 1] = layers->last[last + 1] = layer;
    }
}

void mf_render_layers_cell(struct mf_table *table, const struct mf_render_layers *layers)
{
    char text[MF_RENDER_LAYERS_RANGES_MAX * 20 + 8] = "";
    size_t length = 0;
    if (layers->count == 1) {
        mf_table_cell(table, "%s", layers->name);
        return;
    }
    for (int i = 0; i < layers->range_count && i < MF_RENDER_LAYERS_RANGES_MAX; i++) {
        const char *comma = i > 0 ? "," : "";
        int wrote =
            layers->first[i] == layers->last[i]
                ? snprintf(text + length, sizeof(text) - length, "%s%d", comma, layers->first[i])
                : snprintf(text + length, sizeof(text) - length, "%s%d-%d", comma, layers->first[i],
                           layers->last[i]);
        length += (size_t)wrote;
    }
    mf_table_cell(table, "layers %s%s: %s", text,
                  layers->range_count > MF_RENDER_LAYERS_RANGES_MAX ? ",..." : "", layers->suffix);
}
