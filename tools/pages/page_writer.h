// Writes pages: one HTML file each, which a browser shows without a network, from a disk or from a mail.
#pragma once

#include <string>
#include <string_view>

#include "tools/analysis/category_rules.h"
#include "tools/pages/page_report.h"

namespace cachalot::tools {

// Returns the page. No text of the report is in the HTML itself: all of it is data, deflated and in base64, and the scripts set
// it as text. The page's Content-Security-Policy allows its own scripts and styles, by their hashes, and no request at all.
std::string html_page(const PageReport& report, const CategoryRules& rules);

// Writes the page to a file, as a whole or not at all. Throws InvalidArgument, which names the path, when it cannot be written.
void write_page(const std::string& path, const PageReport& report, const CategoryRules& rules);

}  // namespace cachalot::tools
