// Puts advice on a page: the recommendation on top, and a table of the policies.
#pragma once

#include <span>

#include "tools/advice/advice.h"
#include "tools/pages/page_report.h"

namespace cachalot::tools {

void add_advices(PageReport& report, std::span<const Advice> advices);

}  // namespace cachalot::tools
