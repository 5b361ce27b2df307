#include <gtest/gtest.h>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cachalot/errors.h"
#include "tools/analysis/explanation.h"
#include "tools/history/history.h"
#include "tools/output/html_report.h"

namespace cachalot::tools {
namespace {

nlohmann::json json_of(const std::string& data) {
  return nlohmann::json::parse(data.substr(8, std::stoul(data.substr(0, 8), nullptr, 16)));
}

HtmlReport report_of(const Timelines& timelines) {
  HtmlReport report;
  report.title = "<b>title</b>";
  report.command = "cachalot snapshot";
  add_runs(report, timelines);
  return report;
}

TEST(Page, HasTheRunsOfAHistory) {
  const Timelines timelines(read_history(CACHALOT_DATA_DIR "/snapshots/layers.pickle"));
  const nlohmann::json page = json_of(html_data(report_of(timelines), built_in_rules()));
  ASSERT_EQ(page["runs"].size(), 1U);
  EXPECT_EQ(page["runs"][0]["name"], "layers.pickle");
  EXPECT_EQ(page["runs"][0]["events"], timelines.devices()[0].events().size());
  EXPECT_EQ(page["runs"][0]["layouts"], nlohmann::json({"recorded", "page heap"}));
  EXPECT_EQ(page["columns"]["0/begin"][1], page["columns"]["0/1.address"][1]);
}

TEST(Page, HasNoTextOfTheReportInItsHtml) {
  const Timelines timelines(read_history(CACHALOT_DATA_DIR "/snapshots/layers.pickle"));
  HtmlReport report = report_of(timelines);
  report.verdict.headline = "<script>alert(1)</script>";
  report.answer.add(Table{.title = "<i>table</i>", .columns = {{.title = "<b>"}}, .rows = {{"<u>"}}});
  const std::string html = html_of(report, built_in_rules());
  EXPECT_EQ(html.find("alert(1)"), std::string::npos);
  EXPECT_EQ(html.find("<b>title"), std::string::npos);
  EXPECT_EQ(html.find("<i>table"), std::string::npos);
  EXPECT_EQ(html.find("layers.py"), std::string::npos);
}

TEST(Page, BeginsWithTheVerdictsOfItsAnswer) {
  HtmlReport report;
  for (const char* const title : {"device 0", "device 1"}) {
    Section device(title);
    device.add(Figure{.label = "used", .cell = {nullptr, "1 GiB"}});
    device.add(Figure{.label = "fits", .cell = {nullptr, "yes"}, .is_verdict = true});
    report.answer.add(std::move(device));
  }
  nlohmann::json verdict = json_of(html_data(report, built_in_rules()))["verdict"];
  EXPECT_EQ(verdict["headline"], "fits: yes");
  EXPECT_EQ(verdict["paragraphs"], nlohmann::json({"device 1: fits: yes"}));
  report.verdict.headline = "All limits are kept.";
  verdict = json_of(html_data(report, built_in_rules()))["verdict"];
  EXPECT_EQ(verdict["headline"], "All limits are kept.");
  EXPECT_TRUE(verdict["paragraphs"].empty());
}

// Lines without a label behind a table belong to it, and a column may ask for the texts of its numbers.
TEST(Page, HasRemarksUnderTheTitleOfTheirTable) {
  HtmlReport report;
  report.shows_figures = true;
  report.answer.add_line("fits", "yes");
  report.answer.add(
      Table{.title = "batches",
            .columns = {{.title = "GPU"}, {.title = "PyTorch", .unit = Unit::count, .has_text_on_page = true}},
            .rows = {{"t4", {64, "64+"}}, {"l4", {nullptr, "-"}}}});
  report.answer.add_line("", "no kernels for p40").add_line("", "context: an estimate").add_line("values", "known");
  const nlohmann::json tables = json_of(html_data(report, built_in_rules()))["tables"];
  ASSERT_EQ(tables.size(), 2U);
  EXPECT_EQ(tables[0]["rows"], nlohmann::json::parse(R"([["fits", "yes"], ["values", "known"]])"));
  EXPECT_EQ(tables[1]["note"], "no kernels for p40\ncontext: an estimate");
  EXPECT_EQ(tables[1]["rows"], nlohmann::json::parse(R"([["t4", "64+"], ["l4", "-"]])"));
}

TEST(Page, TellsAFigureThatIsBad) {
  HtmlReport report;
  report.answer.add(Figure{.label = "fits", .cell = {nullptr, "no", Mood::bad}, .is_verdict = true});
  EXPECT_EQ(json_of(html_data(report, built_in_rules()))["verdict"]["bad"], true);
}

TEST(Page, OfATraceHasNoTimes) {
  const Timelines snapshot(read_history(CACHALOT_DATA_DIR "/snapshots/layers.pickle"));
  const Timelines trace(read_history(CACHALOT_DATA_DIR "/traces/gpt2_fp32.csv.gz"));
  EXPECT_EQ(json_of(html_data(report_of(snapshot), built_in_rules()))["runs"][0]["has_times"], true);
  EXPECT_EQ(json_of(html_data(report_of(trace), built_in_rules()))["runs"][0]["has_times"], false);
}

TEST(Page, HasTheWhale) {
  const std::string html = html_of({}, built_in_rules());
  EXPECT_NE(html.find("<span class=\"whale\"><svg "), std::string::npos);
  EXPECT_EQ(html.find("<!-- whale -->"), std::string::npos);
}

TEST(Page, AllowsItsOwnScriptsAlone) {
  const std::string html = html_of({}, built_in_rules());
  EXPECT_NE(html.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(html.find("unsafe"), std::string::npos);
  std::size_t hashes = 0;
  for (std::size_t at = html.find("'sha256-"); at != std::string::npos; at = html.find("'sha256-", at + 1)) ++hashes;
  EXPECT_EQ(hashes, embedded_files().size() - 2);  // all but report.html and whale.svg
}

TEST(Page, SourcesDoNotEndTheirOwnElements) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name.ends_with(".html")) continue;
    EXPECT_EQ(file.text.find("</script"), std::string_view::npos) << file.name;
    EXPECT_EQ(file.text.find("</style"), std::string_view::npos) << file.name;
    EXPECT_EQ(file.text.find("<!--"), std::string_view::npos) << file.name;
    EXPECT_EQ(file.text.find('\r'), std::string_view::npos) << file.name;
    EXPECT_EQ(file.sha256_hex.size(), 64U) << file.name;
  }
}

TEST(Page, OfAnUnwritablePathIsRefused) {
  try {
    write_html_report("/nonexistent/report.html", {}, built_in_rules());
    FAIL() << "was written";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("--html /nonexistent/report.html: cannot write"), std::string::npos)
        << error.what();
  }
}

// A report has a verdict with replays, and the whole history: all of it from one timeline.
TEST(Page, OfAnExplanationPairsTheHistoryOnce) {
  const std::size_t before = Timeline::made();
  const Timelines timelines(read_history(CACHALOT_DATA_DIR "/snapshots/torch-2.11/fragmented.pickle.gz"));
  const Explanation explanation = explain(timelines.devices().front(), built_in_rules(), {});
  EXPECT_FALSE(explanation.remedies.best.empty());
  html_data(report_of(timelines), built_in_rules());
  EXPECT_EQ(Timeline::made() - before, timelines.devices().size() + timelines.host().size());
}

}  // namespace
}  // namespace cachalot::tools
