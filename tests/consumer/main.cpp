// The same library seen from C++: names are C's, structs are plain, enums keep their types.
#include <esper.h>

#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

int main()
{
    std::vector<double> moments(64, 1.0);
    moments[7] = -std::numeric_limits<double>::infinity();
    const esper_guard_tensor tensor = {
        "moments", "optimiser", ESPER_GUARD_ROLE_MOMENT, ESPER_GUARD_F64, ESPER_GUARD_HOST, moments.data(), moments.size()};
    esper_guard *opened = nullptr;
    const esper_guard_report *report = nullptr;

    if (esper_guard_open(nullptr, &opened) != ESPER_OK)
        return 1;
    std::unique_ptr<esper_guard, void (*)(esper_guard *)> guard(opened, esper_guard_close);
    if (esper_guard_add(opened, &tensor, 1) != ESPER_OK || esper_guard_launch(opened, nullptr) != ESPER_OK ||
        esper_guard_read(opened, &report) != ESPER_OK) {
        std::printf("%s\n", esper_last_error());
        return 1;
    }
    std::printf("first bad element: %llu\n", static_cast<unsigned long long>(report->stats[0].first_bad));
    return report->bad == ESPER_GUARD_BAD_INF_STATE && report->stats[0].n_neg_inf == 1 && report->stats[0].first_bad == 7
               ? 0
               : 1;
}
