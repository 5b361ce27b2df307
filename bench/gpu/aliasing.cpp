// One physical handle at two addresses, used in stream order without a wait of the host: does a reader at one address see writes
// at the other? The page heap rests on it. Then a view that is unmapped while the other is used, and as a control a view that is
// unmapped while it is used itself, which must fault: in a child, whose context is lost.
#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "bench/gpu/child.h"
#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"

namespace cachalot::gpu {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::size_t kBytes = 2 * kMiB;  // small: a million handovers take seconds
constexpr seconds kLimit{12};             // of one way to write
constexpr std::uint64_t kHandovers = 1'000'000;
constexpr int kBatch = 100;  // rounds between looks at the clock

// Two views of the same memory, and a count of the words that were not as written at the other one.
class Handovers {
 public:
  explicit Handovers(const Effort& effort) : effort_(effort), views_(kBytes, 2) {}

  Words first() const { return views_.words(0); }
  Words second() const { return views_.words(1); }
  cudaStream_t stream() const { return stream_; }
  unsigned long long* wrong() const { return wrong_.on_device(); }
  std::uint64_t read_wrong() const { return wrong_.read(); }

  // Calls round(seed), which makes `handovers_a_round`, until there were enough or the time is over.
  template <typename Round>
  void repeat(const std::string& name, std::uint64_t handovers_a_round, Round&& round) {
    const std::uint64_t wanted = effort_.rounds(kHandovers, 2 * kBatch) / handovers_a_round;
    const auto end = std::chrono::steady_clock::now() + effort_.time(kLimit);
    std::uint64_t rounds = 0;
    while (rounds < wanted && std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < kBatch && rounds < wanted; ++i) round(static_cast<Word>(++rounds * 1'000'003));
      stream_.synchronize();
    }
    const std::uint64_t wrong_words = wrong_.read();
    fact(name + "/handovers", static_cast<double>(rounds * handovers_a_round), "");
    check_content(name, wrong_words, std::to_string(rounds * handovers_a_round) + " handovers");
  }

 private:
  const Effort effort_;
  const Views views_;
  const OwnStream stream_;
  const WrongWords wrong_;
};

// Before each write the other view's old words are read, so that their lines lie in the caches.
void write_and_read(const Handovers& at, Word seed, Launch how) {
  fill(at.stream(), at.first(), seed, how);
  check(at.stream(), at.second(), seed, at.wrong(), how);
  fill(at.stream(), at.second(), seed + 1, how);
  check(at.stream(), at.first(), seed + 1, at.wrong(), how);
}

void hand_over_by_kernels(const Effort& effort) {
  Handovers at(effort);
  at.repeat("kernels", 2, [&](Word seed) { write_and_read(at, seed, Launch::ordinary); });
}

bool has_dependent_launches() {
  int major = 0;
  require("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  return major >= 9;
}

void hand_over_by_dependent_launches(const Effort& effort) {
  if (!has_dependent_launches()) return not_applicable("dependent_launches", "this GPU is older than 9.0");
  Handovers at(effort);
  at.repeat("dependent_launches", 2, [&](Word seed) { write_and_read(at, seed, Launch::dependent); });
}

// CUDA defines nothing here, so that the figure is a fact and no verdict: a reader that is on the GPU before the writer is done, and
// has read the same memory at its own address by then.
void read_early_in_dependent_launches(const Effort& effort) {
  if (!has_dependent_launches()) return not_applicable("early_reads", "this GPU is older than 9.0");
  if (is_simulated()) return not_applicable("early_reads", kSimulated);
  for (const bool is_alias : {false, true}) {
    const Handovers at(effort);
    for (std::uint64_t round = 0; round < effort.rounds(20'000, 10); ++round) {
      const Word seed = static_cast<Word>(round * 1'000'003);
      fill(at.stream(), at.first(), seed, Launch::dependent);
      check_after_early_read(at.stream(), is_alias ? at.second() : at.first(), seed, at.wrong());
    }
    fact(std::string("early_reads/") + (is_alias ? "other address" : "same address"),
         static_cast<double>(at.read_wrong()), "wrong words");
  }
  not_applicable("early_reads", "CUDA does not define it: a fact without a verdict");
}

void hand_over_in_graphs(const Effort& effort) {
  Handovers at(effort);
  constexpr int kRounds = 50;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  require("cudaStreamBeginCapture", cudaStreamBeginCapture(at.stream(), cudaStreamCaptureModeThreadLocal));
  for (Word round = 0; round < kRounds; ++round) write_and_read(at, round * 1'000'003, Launch::ordinary);
  require("cudaStreamEndCapture", cudaStreamEndCapture(at.stream(), &graph));
  require("cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0));
  at.repeat("graphs", 2 * kRounds, [&](Word) { require("cudaGraphLaunch", cudaGraphLaunch(executable, at.stream())); });
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

void hand_over_by_memsets(const Effort& effort) {
  Handovers at(effort);
  at.repeat("memsets", 2, [&](Word seed) {
    const Word byte = seed & 0xff;
    require("cudaMemsetAsync", cudaMemsetAsync(at.first().first, static_cast<int>(byte), kBytes, at.stream()));
    check_equal(at.stream(), at.second(), byte * 0x01010101u, at.wrong());
    fill(at.stream(), at.second(), seed);
    check(at.stream(), at.first(), seed, at.wrong());
  });
}

// Copies within the device are made by kernels or by a copy engine, as the driver chooses.
void hand_over_by_device_copies(const Effort& effort) {
  Handovers at(effort);
  const Views source(kBytes, 1);
  at.repeat("device_copies", 2, [&](Word seed) {
    for (const auto& [to, from] : {std::pair{at.first(), at.second()}, std::pair{at.second(), at.first()}}) {
      fill(at.stream(), source.words(0), ++seed);
      require("cudaMemcpyAsync",
              cudaMemcpyAsync(to.first, source.words(0).first, kBytes, cudaMemcpyDeviceToDevice, at.stream()));
      check(at.stream(), from, seed, at.wrong());
    }
  });
}

// Copies over the bus are made by copy engines, which have no L1 and other paths to memory.
void hand_over_by_copy_engines(const Effort& effort) {
  Handovers at(effort);
  Word* pinned = nullptr;
  require("cudaMallocHost", cudaMallocHost(reinterpret_cast<void**>(&pinned), 2 * kBytes));
  const std::size_t count = kBytes / sizeof(Word);
  for (std::size_t i = 0; i < 2 * count; ++i) pinned[i] = static_cast<Word>(i);
  at.repeat("copy_engines", 2, [&](Word seed) {
    const Word begin = seed % static_cast<Word>(count);  // words from there on are as filled with this seed
    require("cudaMemcpyAsync",
            cudaMemcpyAsync(at.first().first, pinned + begin, kBytes, cudaMemcpyHostToDevice, at.stream()));
    check(at.stream(), at.second(), begin, at.wrong());
    fill(at.stream(), at.second(), seed);
    check(at.stream(), at.first(), seed, at.wrong());
  });
  require("cudaFreeHost", cudaFreeHost(pinned));
}

void unmap_one_view(const Effort& effort) {
  Views views(32 * kMiB, 2);
  const OwnStream stream;
  const WrongWords wrong;
  const std::uint64_t rounds = effort.rounds(2000, 20);
  std::uint64_t busy_after_unmap = 0;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    const Word seed = static_cast<Word>(round * 1'000'003);
    run_for(stream, milliseconds(1));  // the kernels behind it are queued when the view goes
    fill(stream, views.words(1), seed);
    check(stream, views.words(1), seed, wrong.on_device());
    views.unmap(0);
    busy_after_unmap += stream.is_busy();
    check(stream, views.words(1), seed, wrong.on_device());
    views.map(0);
    check(stream, views.words(0), seed, wrong.on_device());
    stream.synchronize();  // the view goes next
  }
  fact("unmap_one_view/still_running", static_cast<double>(busy_after_unmap),
       "of " + std::to_string(rounds) + " unmaps returned before the kernels on the other view were done");
  check_content("unmap_one_view", wrong.read(), std::to_string(rounds) + " unmaps");
}

// In the child. Says what became of a kernel whose memory was unmapped.
int unmap_under_use(const std::vector<std::string>&) {
  Views views(32 * kMiB, 1);
  const OwnStream stream;
  read_for(stream, views.words(0), seconds(2));
  sleep_for(milliseconds(200));
  const double us = microseconds_of([&] { views.unmap(0); });
  const cudaError_t end = cudaStreamSynchronize(stream);
  std::printf("cuMemUnmap took %.3f s, and the kernel ended with %s\n", us / 1e6, name_of(end).c_str());
  std::fflush(stdout);
  std::_Exit(end == cudaSuccess ? 0 : 3);  // its context is lost: nothing can be tidied up
}

void fault_under_use(const Effort&) {
  const ChildEnd end = run_child({"unmap_under_use"});
  fact("fault_under_use", end.text());
  if (is_simulated()) return not_applicable("fault_under_use", kSimulated);
  const bool faulted = end.exit_code == 3 || end.signal != 0;
  check("fault_under_use", faulted,
        end.text() + (faulted ? "" : "; a fault was expected, as the control of unmap_one_view"));
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv,
                    {{"kernels", hand_over_by_kernels},
                     {"graphs", hand_over_in_graphs},
                     {"dependent_launches", hand_over_by_dependent_launches},
                     {"memsets", hand_over_by_memsets},
                     {"device_copies", hand_over_by_device_copies},
                     {"copy_engines", hand_over_by_copy_engines},
                     {"early_reads", read_early_in_dependent_launches},
                     {"unmap_one_view", unmap_one_view},
                     {"fault_under_use", fault_under_use}},
                    {{"unmap_under_use", unmap_under_use}});
}
