// `cachalot gpus`: the GPUs that --gpu knows.
#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "simulator/models/gpu_models.h"
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
    std::string lines =
        styles.out.bold(fmt::format("{:<15} {:>10}  {:>10}  product", "GPU", "memory", "capability")) + "\n";
    for (const simulator::GpuModel& model : simulator::gpu_models()) {
      lines += fmt::format("{:<15} {:>10}  {:>10}  {}\n", model.key, format_bytes(model.memory_bytes),
                           fmt::format("{}.{}", model.major, model.minor), model.product);
    }
    print(lines);
    return 0;
  }
};

}  // namespace

std::unique_ptr<Command> make_gpus_command() { return std::make_unique<GpusCommand>(); }

}  // namespace cachalot::tools
