/* UTF-8 sequences. */
#include "base/utf8.h"

#include <string.h>

size_t esper_utf8_length(const uint8_t *s, size_t n)
{
    uint8_t low = 0x80, high = 0xBF; /* allowed for the second byte */
    size_t length;

    if (s[0] < 0x80)
        return 1;
    if (s[0] >= 0xC2 && s[0] <= 0xDF) {
        length = 2;
    } else if (s[0] >= 0xE0 && s[0] <= 0xEF) {
        length = 3;
        low = s[0] == 0xE0 ? 0xA0 : low;
        high = s[0] == 0xED ? 0x9F : high;
    } else if (s[0] >= 0xF0 && s[0] <= 0xF4) {
        length = 4;
        low = s[0] == 0xF0 ? 0x90 : low;
        high = s[0] == 0xF4 ? 0x8F : high;
    } else {
        return 0;
    }
    if (n < length || s[1] < low || s[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if (s[i] < 0x80 || s[i] > 0xBF)
            return 0;
    return length;
}

bool esper_utf8_is_control(const uint8_t *s, size_t length)
{
    return length == 2 ? s[0] == 0xC2 && s[1] < 0xA0 : length == 1 && (s[0] < ' ' || s[0] == 0x7F);
}

void esper_utf8_show(char *text)
{
    size_t n = strlen(text);

    for (size_t i = 0, took; i < n; i += took) {
        const uint8_t *at = (const uint8_t *)text + i;
        size_t length = esper_utf8_length(at, n - i);

        took = length > 0 ? length : 1;
        if (length == 0 || esper_utf8_is_control(at, length))
            memset(text + i, '?', took);
    }
}
