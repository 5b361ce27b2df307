// `cachalot gpus`: the GPUs that --gpu knows.
#include <fmt/format.h>

#include <utility>

#include "simulator/models/gpu_models.h"
#include "tools/base/report_tree.h"
#include "tools/commands/command.h"

namespace cachalot::tools {
namespace {

class GpusCommand : public Command {
 public:
  const CommandText& text() const override {
    static const CommandText text = {
        .name = "gpus",
        .usage = "[OPTIONS]",
        .summary = "List the GPUs that --gpu knows, with their memory",
        .details =
            "The memory is what CUDA reports as the total, a little less than the nominal size. For a GPU that is "
            "not in the list, give its memory: cachalot simulate --memory 24GiB."};
    return text;
  }

  int run(const Styles& styles) override {
    Table table{.columns = {{.title = "GPU", .width = 15, .is_left = true},
                            {.title = "memory", .unit = Unit::bytes, .width = 10},
                            {.title = "capability", .width = 11},
                            {.title = "product"}},
                .indent = 0};
    for (const simulator::GpuModel& model : simulator::gpu_models()) {
      table.rows.push_back(
          {model.key, model.memory_bytes, fmt::format("{}.{}", model.major, model.minor), model.product});
    }
    print(text_of(Section().add(std::move(table)), styles.out));
    return 0;
  }
};

}  // namespace

std::unique_ptr<Command> make_gpus_command() { return std::make_unique<GpusCommand>(); }

}  // namespace cachalot::tools
