// Puts a comparison of two runs on a page: what grew, in tables.
#pragma once

#include "tools/analysis/difference.h"
#include "tools/pages/page_report.h"

namespace cachalot::tools {

void add_difference(PageReport& report, const Difference& difference);

}  // namespace cachalot::tools
