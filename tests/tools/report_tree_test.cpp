// Tests of reports: one tree, shown as text and as JSON.
#include "tools/base/report_tree.h"

#include <gtest/gtest.h>

#include <cstddef>

namespace cachalot::tools {
namespace {

Table lines_table() {
  return {.key = "lines",
          .columns = {{.key = "line", .title = "line", .is_left = true},
                      {.key = "bytes", .title = "memory", .unit = Unit::bytes}},
          .rows = {{"a.py:1", std::size_t{3} << 20}, {"b.py:22", std::size_t{1} << 10}, {"c.py:3", std::size_t{8}}}};
}

TEST(Report, HasEachFigureForPeopleAndForPrograms) {
  Section report("", 10);
  report.add_bytes("peak_bytes", "peak", std::size_t{3} << 20, " of the device");
  report.add_value("count", 7).add_line("verdict", "fits");
  EXPECT_EQ(text_of(report, Style()), "  peak       3.00 MiB of the device\n  verdict    fits\n");
  EXPECT_EQ(json_of(report).dump(), R"({"peak_bytes":3145728,"count":7})");
}

TEST(Report, HasATablesRowsAlignedForPeopleAndAsObjectsForPrograms) {
  Section report;
  report.add(lines_table());
  EXPECT_EQ(text_of(report, Style()),
            "  line        memory\n"
            "  a.py:1    3.00 MiB\n"
            "  b.py:22 1024 bytes\n"
            "  c.py:3     8 bytes\n");
  EXPECT_EQ(
      json_of(report).dump(),
      R"({"lines":[{"line":"a.py:1","bytes":3145728},{"line":"b.py:22","bytes":1024},{"line":"c.py:3","bytes":8}]})");
}

TEST(Report, SaysHowManyRowsOfATableAreLeftOut) {
  Table table = lines_table();
  table.show_first(1);
  Section report;
  report.add(table);
  EXPECT_EQ(text_of(report, Style()), "  line     memory\n  a.py:1 3.00 MiB\n  and 2 more\n");
  EXPECT_EQ(json_of(report)["lines"].size(), 1U);
}

TEST(Report, OfATableWithoutRowsIsAnEmptyArrayForPrograms) {
  Table table = lines_table();
  table.rows.clear();
  Section report;
  report.add(table);
  EXPECT_EQ(text_of(report, Style()), "");
  EXPECT_EQ(json_of(report).dump(), R"({"lines":[]})");
}

TEST(Report, PutsObjectsAndListsUnderTheirKeys) {
  Section list = list_of("devices");
  for (const int device : {0, 1}) {
    Section one = object_of("");
    one.add_value("device", device);
    list.add(one);
  }
  Section report;
  report.add(list);
  Section settings = object_of("settings");
  settings.add_value("heap", "pages");
  report.add(settings);
  EXPECT_EQ(json_of(report).dump(), R"({"devices":[{"device":0},{"device":1}],"settings":{"heap":"pages"}})");
}

TEST(Report, ShowsAPartOnlyInTheViewsThatHaveIt) {
  Section report;
  Table table = lines_table();
  table.views = kTextAlone;
  report.add(table);
  report.add(Note{.text = "for pages", .views = kPageAlone});
  EXPECT_EQ(json_of(report).dump(), "{}");
  EXPECT_EQ(text_of(report, Style()).find("for pages"), std::string::npos);
}

TEST(Report, WritesEachUnit) {
  EXPECT_EQ(text_in(Unit::bytes, 3 << 19), "1.50 MiB");
  EXPECT_EQ(text_in(Unit::growth, -(3 << 19)), "-1.50 MiB");
  EXPECT_EQ(text_in(Unit::growth, 3 << 19), "+1.50 MiB");
  EXPECT_EQ(text_in(Unit::count, 1200), "1,200");
  EXPECT_EQ(text_in(Unit::part, 0.123), "12.3 %");
  EXPECT_EQ(text_in(Unit::bytes, nullptr), "");
}

}  // namespace
}  // namespace cachalot::tools
