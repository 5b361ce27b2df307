// The data of one run of a page (page_data.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tools/analysis/category_rules.h"
#include "tools/history/tables.h"
#include "tools/pages/column_writer.h"
#include "tools/pages/page_report.h"

namespace cachalot::tools {

// Adds the run's columns, their names behind `prefix`, and the texts of its frames. Returns its object of "runs".
nlohmann::ordered_json add_run(const PageRun& run, const CategoryRules& rules, const std::string& prefix,
                               ColumnWriter& columns, TextTable& texts);

}  // namespace cachalot::tools
