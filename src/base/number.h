/* Internal. Numbers as text, the same in every locale: configuration files and JSON always use the decimal point. */
#ifndef ESPER_BASE_NUMBER_H
#define ESPER_BASE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

enum { ESPER_NUMBER_CHARS = 32 }; /* room for any number below, terminator included */

/* The whole text must be one decimal number, without white space; otherwise false and nothing is written.
 * Whole numbers that do not fit are clamped to the nearest end and *fits_out says so. */
bool esper_number_read_int(const char *text, int64_t *value_out, bool *fits_out);
bool esper_number_read_u64(const char *text, uint64_t *value_out, bool *fits_out);
bool esper_number_read_real(const char *text, double *value_out); /* refuses nan, inf and hexadecimal */

/* The shortest of 15, 16 or 17 digits that reads back as the same value; "nan", "inf", "-inf" for the others. */
void esper_number_write_real(double value, char text[ESPER_NUMBER_CHARS]);
void esper_number_write_float(float value, char text[ESPER_NUMBER_CHARS]); /* likewise of 6 to 9 digits */

/* With so many decimals, 0 to 9: "0.50". From 1e15 up as above, since such digits would say nothing. */
void esper_number_write_fixed(double value, int decimals, char text[ESPER_NUMBER_CHARS]);

#endif
