// Puts an explanation on a page: the verdict with its remedies on top, and tables of the causes.
#pragma once

#include <span>

#include "tools/analysis/explanation.h"
#include "tools/pages/page_report.h"

namespace cachalot::tools {

void add_explanations(PageReport& report, std::span<const Explanation> explanations);

}  // namespace cachalot::tools
