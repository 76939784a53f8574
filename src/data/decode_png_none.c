/* PNG in a build without libpng. */
#include "base/status.h"
#include "data/picture.h"

esper_status esper_png_decode(const char *name, const uint8_t *bytes, size_t n, esper_picture *picture_out)
{
    (void)bytes;
    (void)n;
    (void)picture_out;
    return ESPER_FAIL(ESPER_E_UNSUPPORTED,
                      "%s: a PNG, and this build has no libpng: install it (Debian: libpng-dev) and build again", name);
}
