/* How an error ends the program, and what a person reads: see command.h. */
#include <math.h>
#include <string.h>

#include "client/command.h"

static bool is_reason(const struct mf_error *error, const char *reason)
{
    return strcmp(error->reason, reason) == 0;
}

enum mf_command_exit mf_command_error_exit(const struct mf_error *error)
{
    static const struct {
        enum mf_status status;
        enum mf_command_exit exit;
    } exits[] = {
        {MF_STATUS_OK, MF_COMMAND_EXIT_OK},
        {MF_STATUS_UNAVAILABLE, MF_COMMAND_EXIT_NO_DAEMON},
        {MF_STATUS_NOT_FOUND, MF_COMMAND_EXIT_NOT_FOUND},
        {MF_STATUS_NO_DEVICE_MEMORY, MF_COMMAND_EXIT_NO_FIT},
        {MF_STATUS_BUSY, MF_COMMAND_EXIT_BUSY},
    };
    if (is_reason(error, "DEVICE_MEMORY_TOO_SMALL") || is_reason(error, "HOST_MEMORY_TOO_SMALL") ||
        is_reason(error, "PINNED_MEMORY_LIMIT")) {
        return MF_COMMAND_EXIT_NO_FIT;
    }
    for (size_t i = 0; i < sizeof(exits) / sizeof(exits[0]); i++) {
        if (exits[i].status == error->status) {
            return exits[i].exit;
        }
    }
    return MF_COMMAND_EXIT_FAILED;
}

const char *mf_command_error_size(int64_t bytes, char out[static MF_FORMAT_MAX])
{
    if (bytes >= 10ll << 30) {
        snprintf(out, MF_FORMAT_MAX, "%.1fGiB", ceil((double)bytes / 0x1p30 * 10) / 10);
    } else if (bytes >= 16ll << 20) {
        snprintf(out, MF_FORMAT_MAX, "%lldMiB", (long long)((bytes + (1ll << 20) - 1) >> 20));
    } else if (bytes >= 16ll << 10) {
        snprintf(out, MF_FORMAT_MAX, "%lldKiB", (long long)((bytes + (1ll << 10) - 1) >> 10));
    } else {
        snprintf(out, MF_FORMAT_MAX, "%lld", (long long)bytes);
    }
    return out;
}

/* "needed 3.20 GiB": the number under its name without the unit. */
static void print_number(const char *name, int64_t value, bool first, FILE *out)
{
    static const char suffix[] = "_bytes";
    char text[MF_FORMAT_MAX];
    size_t length = strlen(name);
    bool bytes = length > strlen(suffix) && strcmp(name + length - strlen(suffix), suffix) == 0;
    fputs(first ? "  " : ", ", out);
    for (size_t i = 0; i < (bytes ? length - strlen(suffix) : length); i++) {
        fputc(name[i] == '_' ? ' ' : name[i], out);
    }
    if (bytes) {
        fprintf(out, " %s", mf_format_bytes(value, text));
    } else {
        fprintf(out, " %lld", (long long)value);
    }
}

/* True when the text has the number already. */
static bool said(const struct mf_error *error, size_t index)
{
    char text[MF_FORMAT_MAX];
    if (strstr(error->text, mf_format_bytes(error->numbers[index].value, text)) != NULL) {
        return true;
    }
    snprintf(text, sizeof(text), "%lld", (long long)error->numbers[index].value);
    return strstr(error->text, text) != NULL;
}

static void print_way_out(const struct mf_error *error, FILE *out)
{
    const char *side = is_reason(error, "DEVICE_MEMORY_TOO_SMALL") ? "device"
                       : is_reason(error, "HOST_MEMORY_TOO_SMALL") ? "host"
                                                                   : NULL;
    for (size_t i = 0; side != NULL && i < error->number_count; i++) {
        if (strcmp(error->numbers[i].name, "smallest_bytes") == 0 && error->numbers[i].value > 0) {
            char size[MF_FORMAT_MAX];
            char flag[MF_FORMAT_MAX];
            fprintf(out, "  the smallest %s budget that works is %s: --%s-memory %s\n", side,
                    mf_format_bytes(error->numbers[i].value, size), side,
                    mf_command_error_size(error->numbers[i].value, flag));
        }
    }
}

void mf_command_error_print(const struct mf_error *error, FILE *out)
{
    fputs("memferry: ", out);
    mf_table_print_text(error->text, out);
    fputc('\n', out);
    bool printed = false;
    for (size_t i = 0; i < error->number_count; i++) {
        if (error->numbers[i].value >= 0 && !said(error, i)) {
            print_number(error->numbers[i].name, error->numbers[i].value, !printed, out);
            printed = true;
        }
    }
    fputs(printed ? "\n" : "", out);
    print_way_out(error, out);
}
