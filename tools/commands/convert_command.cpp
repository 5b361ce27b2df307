// `cachalot convert`: a history in another format.
#include <optional>
#include <string>

#include "base/check.h"
#include "tools/base/output_file.h"
#include "tools/commands/command.h"
#include "tools/commands/shared_options.h"
#include "tools/history/history.h"
#include "tools/output/export_formats.h"

namespace cachalot::tools {
namespace {

class ConvertCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "convert",
        .usage = "[OPTIONS] FILE -o OUT",
        .summary = "Write a memory snapshot or a log of allocations in another format",
        .details =
            "Reads whatever the other commands read, and writes a memory snapshot of PyTorch (for "
            "pytorch.org/memory_viz), trace events for Perfetto, JSON, a log of RMM or a trace of cachalot. The ending "
            "of OUT tells the format, or --to does. OUT appears whole or not at all; - is standard output, and a name "
            "that ends with .gz is compressed.",
        .examples = {
            {"A timeline for ui.perfetto.dev:", "cachalot convert snapshot.pickle -o snapshot.perfetto.json.gz"},
            {"For PyTorch's viewer, which cannot open every pickle:",
             "cachalot convert snapshot.zip -o for_viewer.pickle"}}};
    return text;
  }

  void declare(CLI::App& app) override {
    app.add_option("FILE", file_, "A memory snapshot, a trace, or a log of allocations")->required();
    app.add_option("-o,--output", output_, "The file to write; - is standard output")->type_name("OUT")->required();
    app.add_option("--to", format_, "The format: " + export_format_names())->type_name("FORMAT");
    app.add_option("--device", options_.device, "Write this device alone")->type_name("N");
    app.add_option("--most-events", options_.most_events,
                   "Of Perfetto: about how many events to write; small allocations are left out first")
        ->type_name("N")
        ->check(CLI::Range(std::size_t{100}, std::size_t{100'000'000}))
        ->capture_default_str();
  }

  int run(const Styles&) override {
    const ExportFormat& format = format_ ? export_format(*format_) : export_format_of_file(output_);
    require_no_input(output_, "-o", std::vector{file_});
    const History history = history_in(file_);
    OutputFile out(output_, "-o");
    format.write(history, options_, out);
    out.finish();
    return 0;
  }

 private:
  std::string file_;
  std::string output_;
  std::optional<std::string> format_;
  ExportOptions options_;
};

}  // namespace

std::unique_ptr<Command> make_convert_command() { return std::make_unique<ConvertCommand>(); }

}  // namespace cachalot::tools
