/* Any bytes as a PNG: an error with words, or pixels of a size that the head said; and brought to another size. */
#include "fuzz/fuzz.h"

#include "data/picture.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    static uint8_t small[3 * 9 * 7];
    esper_picture_head head;
    esper_picture picture = {0};
    esper_status status;

    /* Many pixels from few bytes are allowed, and slow: here they would fill the time. */
    if (esper_picture_look("input", bytes, n_bytes, &head) == ESPER_OK && (int64_t)head.height * head.width > 1 << 16)
        return 0;
    status = esper_png_decode("input", bytes, n_bytes, &picture);
    fuzz_must_say(status);
    if (status == ESPER_OK) {
        fuzz_must(picture.channels == 1 || picture.channels == 3);
        fuzz_must(esper_picture_fit(&picture, 3, 9, 7, small) == ESPER_OK);
        fuzz_must(esper_picture_fit(&picture, 1, 2, 3, small) == ESPER_OK);
    }
    esper_picture_fini(&picture);
    fuzz_must_be_free();
    return 0;
}
