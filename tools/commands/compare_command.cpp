// `cachalot compare`: the memory of a program under PyTorch's policies and the page heap.
#include <fmt/format.h>

#include "tools/base/output_file.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/output/html_report.h"
#include "tools/replay/comparison.h"
#include "tools/replay/replay.h"

namespace cachalot::tools {
namespace {

class CompareCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "compare",
        .usage = "[OPTIONS] TRACE...",
        .summary = "Compare the memory that PyTorch's policies and cachalot's page heap hold for the same program",
        .details =
            "Replays each trace on a simulated GPU with PyTorch's default policy and with cachalot's page heap, "
            "computes what PyTorch's expandable segments hold, and prints one line for each trace and one sentence for "
            "all. Of a memory snapshot the recorded history is replayed.",
        .examples = {{"What would the other policies have held?", "cachalot compare snapshot.pickle"},
                     {"On a GPU where memory is scarce:", "cachalot compare --device-memory 12GiB trace.csv.gz"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    declare_traces(app, traces_);
    declare_device_size(app, device_);
    declare_json_lines(app, json_);
    declare_html(app, html_);
  }

  int run(const Styles& styles) override {
    require_no_input(html_, "--html", traces_);
    const std::size_t bytes = device_bytes(device_, ReplayOptions().device_bytes);
    std::vector<Comparison> comparisons;
    for (const Trace& trace : read_all_traces(traces_)) {
      ProgressBar bar(trace.path);
      comparisons.push_back(compare_policies(trace, bytes, [&](double done) { bar.show(done); }));
    }
    const Section report = report_of(comparisons);
    if (!html_.empty())
      write_html_report(html_,
                        {.title = traces_.size() == 1 ? traces_[0] : fmt::format("{} traces", traces_.size()),
                         .command = "cachalot compare",
                         .verdict = {.headline = conclusion(comparisons), .paragraphs = {}, .remedies = {}},
                         .answer = report},
                        built_in_rules());
    if (!json_) print(text_of(report, styles.out));
    for (const Comparison& comparison : comparisons) {
      if (json_) print(tools::text_of(json_of(report_of(comparison))) + "\n");
    }
    return 0;
  }

 private:
  std::vector<std::string> traces_;
  DeviceSize device_;
  bool json_ = false;
  std::string html_;  // a file; empty: no page
};

}  // namespace

std::unique_ptr<Command> make_compare_command() { return std::make_unique<CompareCommand>(); }

}  // namespace cachalot::tools
