/* Files that the verbs write and read whole: see command_file.h. */
#include "client/command_file.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/limits.h"

#define BYTES_MAX (MF_MESSAGE_BYTES_MAX - 1024) /* of a text that goes into one message */

static bool is_standard(const char *path)
{
    return strcmp(path, "-") == 0;
}

enum mf_status mf_command_file_open(const char *path, FILE **out)
{
    *out = is_standard(path) ? stdout : fopen(path, "wbe");
    return *out != NULL ? MF_STATUS_OK
                        : mf_status_set(MF_STATUS_IO, "cannot write %s: %s", path, strerror(errno));
}

enum mf_status mf_command_file_close(const char *path, FILE *file)
{
    struct stat about;
    bool regular = !is_standard(path) && fstat(fileno(file), &about) == 0 && S_ISREG(about.st_mode);
    bool failed = fflush(file) != 0 || ferror(file) != 0;
    int cause = errno;
    failed |= !is_standard(path) && fclose(file) != 0;
    if (!failed) {
        return MF_STATUS_OK;
    }
    if (regular) {
        unlink(path); /* half a file is of no use to anybody */
    }
    return mf_status_set(MF_STATUS_IO, "cannot write %s: %s", path, strerror(cause));
}

enum mf_status mf_command_file_write(const char *path, const char *text)
{
    FILE *file = NULL;
    MF_TRY(mf_command_file_open(path, &file));
    fputs(text, file);
    fputc('\n', file);
    return mf_command_file_close(path, file);
}

enum mf_status mf_command_file_read(const char *path, char **out)
{
    FILE *file = is_standard(path) ? stdin : fopen(path, "rbe");
    if (file == NULL) {
        return mf_status_set(errno == ENOENT ? MF_STATUS_NOT_FOUND : MF_STATUS_IO,
                             "cannot read %s: %s", path, strerror(errno));
    }
    char *text = malloc(BYTES_MAX + 2);
    MF_ASSERT(text != NULL);
    size_t count = fread(text, 1, BYTES_MAX + 1, file);
    bool failed = ferror(file) != 0;
    int cause = errno;
    if (file != stdin) {
        fclose(file);
    }
    text[count] = '\0';
    *out = text;
    if (!failed && count <= BYTES_MAX && strlen(text) == count) {
        return MF_STATUS_OK;
    }
    free(text);
    *out = NULL;
    return failed ? mf_status_set(MF_STATUS_IO, "cannot read %s: %s", path, strerror(cause))
           : count > BYTES_MAX
               ? mf_status_set(MF_STATUS_INVALID, "%s has more than %lld bytes", path, BYTES_MAX)
               : mf_status_set(MF_STATUS_INVALID, "%s is no text: it has a zero byte", path);
}
