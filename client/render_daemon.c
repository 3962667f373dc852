/* The daemon and the machine for people: see render.h. */
#include <inttypes.h>
#include <string.h>

#include "client/render.h"

static void device_facts(const struct mf_render *render, const Memferry__V1__Device *device,
                         size_t index)
{
    char a[MF_FORMAT_MAX], b[MF_FORMAT_MAX];
    mf_render_fact(render, "device", "%zu: %s (%s), %s, %s reserved", index, device->name,
                   device->kind, mf_format_bytes(device->memory_bytes, a),
                   mf_format_bytes(device->reserved_bytes, b));
    if (device->matrix_flops > 0) {
        mf_render_fact(render, "", "bf16 products %.3g TFLOP/s, memory %s",
                       device->matrix_flops / 1e12,
                       mf_render_rate(device->memory_bytes_per_second, a));
    }
    mf_render_fact(render, "", "link to the device %s, back %s%s",
                   mf_render_rate(device->h2d_bytes_per_second, a),
                   mf_render_rate(device->d2h_bytes_per_second, b),
                   device->link_emulated ? " (emulated)" : "");
    if (device->driver[0] != '\0' || device->runtime[0] != '\0') {
        mf_render_fact(render, "", "%s%s%s%s", device->driver[0] != '\0' ? "driver " : "",
                       device->driver, device->driver[0] != '\0' ? ", runtime " : "runtime ",
                       device->runtime);
    }
}

void mf_render_daemon_hardware(const struct mf_render *render,
                               const Memferry__V1__Hardware *hardware)
{
    char a[MF_FORMAT_MAX], b[MF_FORMAT_MAX];
    mf_render_heading(render, "hardware %s", mf_render_short(hardware->fingerprint, a));
    for (size_t i = 0; i < hardware->n_devices; i++) {
        device_facts(render, hardware->devices[i], i);
    }
    mf_render_fact(render, "cpu", "%s, %d cores, %d NUMA node%s", hardware->cpu_name,
                   hardware->cpu_cores, hardware->numa_nodes, hardware->numa_nodes == 1 ? "" : "s");
    mf_render_fact(render, "memory", "%s, %s", mf_format_bytes(hardware->host_memory_bytes, a),
                   mf_render_rate(hardware->host_bytes_per_second, b));
    if (!hardware->measured) {
        mf_render_fact(render, "rates", "from a description: estimates");
    }
}

void mf_render_daemon_status(const struct mf_render *render,
                             const Memferry__V1__GetStatusResponse *status,
                             const Memferry__V1__Hardware *hardware)
{
    char a[MF_FORMAT_MAX], b[MF_FORMAT_MAX];
    mf_render_heading(render, "memferryd %s at %s", status->version, status->address);
    mf_render_fact(render, "process", "%" PRId64 ", up %s", status->pid,
                   mf_render_age(status->uptime_seconds, a));
    mf_render_fact(render, "doing", "%s",
                   status->working_on[0] != '\0' ? status->working_on : "nothing");
    mf_render_fact(render, "sessions", "%d of at most %d", status->session_count,
                   status->sessions_max);
    mf_render_fact(render, "device", "%s of %s reserved",
                   mf_format_bytes(status->device_reserved_bytes, a),
                   mf_format_bytes(status->device_memory_bytes, b));
    if (status->no_gpu[0] != '\0') {
        mf_render_fact(render, "", "no GPU is used: %s", status->no_gpu);
    }
    mf_render_fact(render, "host", "%s of %s reserved",
                   mf_format_bytes(status->host_reserved_bytes, a),
                   mf_format_bytes(status->host_memory_bytes, b));
    mf_render_fact(render, "store", "%" PRId64 " plans, %" PRId64 " measurements in %s",
                   status->plan_count, status->measurement_count, status->store_path);
    if (hardware != NULL) {
        mf_render_daemon_hardware(render, hardware);
    }
}

void mf_render_daemon_doctor(const struct mf_render *render,
                             const Memferry__V1__DoctorResponse *answer)
{
    static const struct {
        const char *word;
        enum mf_render_tone tone;
    } verdicts[] = {{"?   ", MF_RENDER_PLAIN},
                    {"good", MF_RENDER_GOOD},
                    {"note", MF_RENDER_NOTE},
                    {"bad ", MF_RENDER_BAD}};
    size_t name_width = 0;
    for (size_t i = 0; i < answer->n_checks; i++) {
        size_t width = mf_table_characters(answer->checks[i]->name);
        name_width = width > name_width ? width : name_width;
    }
    for (size_t i = 0; i < answer->n_checks; i++) {
        const Memferry__V1__DoctorCheck *check = answer->checks[i];
        size_t verdict = (size_t)check->verdict < 4 ? (size_t)check->verdict : 0;
        fprintf(render->out, "%s%s%s  ", mf_render_tone_begin(render, verdicts[verdict].tone),
                verdicts[verdict].word, mf_render_tone_end(render));
        mf_table_print_text(check->name, render->out);
        fprintf(render->out, "%*s  ", (int)(name_width - mf_table_characters(check->name)), "");
        mf_table_print_text(check->value, render->out);
        fputc('\n', render->out);
        if (check->meaning[0] != '\0') {
            mf_render_wrapped(render, (int)name_width + 8, check->meaning);
        }
    }
}
