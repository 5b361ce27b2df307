// `cachalot snapshot`: says what holds the memory in a snapshot.
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "tools/base/output_file.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/history/readers.h"
#include "tools/output/html_report.h"
#include "tools/output/snapshot_report.h"

namespace cachalot::tools {
namespace {

class SnapshotCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "snapshot",
        .usage = "[OPTIONS] SNAPSHOT...",
        .summary = "Say what holds the GPU memory at the end of a memory snapshot of PyTorch or cachalot",
        .details =
            "Reports for each device the peak of its memory, and of the end of its history the reserved, allocated, "
            "requested and free memory and its fragmentation, the same for each pool and stream, and the lines of the "
            "program that hold most memory. `cachalot explain` says what held the memory at the peak, or when memory "
            "ran out, and what would help. Lines are known where "
            "the program called torch.cuda.memory._record_memory_history() before it allocated.\n\n"
            "A pickle is read as plain data: nothing in it is executed, and a file that asks for that is refused. The "
            "exit code is 0, or 2 after an error, which one line on standard error tells.",
        .examples = {
            {"In the program: torch.cuda.memory._dump_snapshot(\"snapshot.pickle\"); then:",
             "cachalot snapshot snapshot.pickle"},
            {"The three lines that hold most, for a script:", "cachalot snapshot --top 3 --json snapshot.pickle"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("SNAPSHOT", snapshots_,
                   "Files of torch.cuda.memory._dump_snapshot, or cachalot's own JSON; plain or gzip")
        ->required();
    app.option_defaults()->group(kOutputOptions);
    app.add_option("--top", top_, "How many lines of the program to show")
        ->type_name("N")
        ->check(CLI::Range(0, 1000000))
        ->capture_default_str();
    app.add_flag("--json", json_, "Print one JSON object for each snapshot, each on one line");
    app.add_option("--html", html_, "Write a page with all of it, from the whole history, for a browser")
        ->type_name("FILE");
  }

  // All are read before anything is printed: a bad one is an error without output.
  int run(const Styles& styles) override {
    require_no_input(html_, "--html", snapshots_);
    std::vector<Section> reports;
    std::vector<Timelines> timelines;  // for the report
    for (const std::string& path : snapshots_) {
      with_file(path, "snapshot", [&](InputFile file) {
        Timelines one(read_snapshot_history(std::move(file)));
        reports.push_back(report_of(one, top_));
        if (!html_.empty()) timelines.push_back(std::move(one));
      });
    }
    if (!html_.empty()) write_html(reports, timelines);
    for (const Section& report : reports)
      print(json_ ? tools::text_of(json_of(report)) + "\n" : text_of(report, styles.out));
    return 0;
  }

 private:
  void write_html(const std::vector<Section>& reports, const std::vector<Timelines>& timelines) const {
    HtmlReport report;
    report.title = snapshots_.size() == 1 ? snapshots_[0] : fmt::format("{} snapshots", snapshots_.size());
    report.command = "cachalot snapshot";
    for (const Section& one : reports) report.answer.add(one);
    for (const Timelines& one : timelines) add_runs(report, one);
    write_html_report(html_, report, built_in_rules());
  }

  std::vector<std::string> snapshots_;
  std::size_t top_ = 10;
  bool json_ = false;
  std::string html_;  // a file; empty: no report
};

}  // namespace

std::unique_ptr<Command> make_snapshot_command() { return std::make_unique<SnapshotCommand>(); }

}  // namespace cachalot::tools
