/* JPEG in a build without libjpeg. */
#include "base/status.h"
#include "data/picture.h"

esper_status esper_jpeg_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out)
{
    (void)bytes;
    (void)n;
    (void)picture_out;
    return ESPER_FAIL(
        ESPER_E_UNSUPPORTED,
        "%s: a JPEG, and this build has no libjpeg: install it (Debian: libjpeg62-turbo-dev) and build again", name);
}
