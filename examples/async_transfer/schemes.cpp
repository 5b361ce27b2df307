#include "examples/async_transfer/schemes.h"

#include <memory>
#include <vector>

#include "cachalot/buffers.h"
#include "examples/async_transfer/work.h"
#include "examples/common/cuda.h"

namespace async_transfer {

namespace {

using examples::Event;
using examples::Stream;

float* floats(const cachalot::Allocation& memory) { return static_cast<float*>(memory.get()); }

void work(const Job& job, float* batch, const Stream& stream) {
  for (int i = 0; i < job.kernels; ++i) launch_work(batch, job.count, stream.get());
}

// A step on one stream, from and to memory of either kind.
void step_in_turn(const Job& job, const float* in, float* on_gpu, float* out, const Stream& stream) {
  EXAMPLES_CHECK(cudaMemcpyAsync(on_gpu, in, job.bytes(), cudaMemcpyHostToDevice, stream.get()));
  work(job, on_gpu, stream);
  EXAMPLES_CHECK(cudaMemcpyAsync(out, on_gpu, job.bytes(), cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
}

struct FreeHost {
  void operator()(float* memory) const { cudaFreeHost(memory); }
};
std::unique_ptr<float, FreeHost> pin(std::size_t bytes) {
  void* memory = nullptr;
  EXAMPLES_CHECK(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return std::unique_ptr<float, FreeHost>(static_cast<float*>(memory));
}

struct ToPool {
  cachalot::PinnedHostAllocator* pool;
  void operator()(float* memory) const { pool->deallocate(memory); }
};
using PooledFloats = std::unique_ptr<float, ToPool>;
PooledFloats take(cachalot::PinnedHostAllocator& pool, std::size_t bytes) {
  return PooledFloats(static_cast<float*>(pool.allocate(bytes)), ToPool{&pool});
}

// A batch under way: the GPU's buffer, and where the result goes.
struct Slot {
  cachalot::Allocation on_gpu;
  Event arrived;
  Event worked_on;
  Event returned;  // and so the buffer may be written again
  PooledFloats out;
  int step = -1;  // none yet
};

class Pipeline {
 public:
  Pipeline(const Job& job, cachalot::CachingAllocator& gpu, cachalot::PinnedHostAllocator& host, int buffers,
           Results& results)
      : job_(job), host_(host), results_(results), slots_(static_cast<std::size_t>(buffers)) {
    for (Slot& slot : slots_) slot.on_gpu = cachalot::allocate_owned(gpu, job.bytes(), 0, work_.get());
  }

  void run() {
    for (int step = 0; step < job_.steps; ++step) begin(slots_[static_cast<std::size_t>(step) % slots_.size()], step);
    for (int step = 0; step < static_cast<int>(slots_.size()); ++step) {
      finish(slots_[static_cast<std::size_t>(job_.steps + step) % slots_.size()]);  // the oldest first
    }
  }

 private:
  void begin(Slot& slot, int step) {
    finish(slot);
    slot.step = step;
    send(slot);
    slot.arrived.holds_up(work_);
    work(job_, floats(slot.on_gpu), work_);
    slot.worked_on.record(work_);
    slot.worked_on.holds_up(down_);
    slot.out = take(host_, job_.bytes());
    EXAMPLES_CHECK(
        cudaMemcpyAsync(slot.out.get(), slot.on_gpu.get(), job_.bytes(), cudaMemcpyDeviceToHost, down_.get()));
    slot.returned.record(down_);
  }

  // The buffer goes back to the pool at once: its next user gets it after the copy.
  void send(Slot& slot) {
    const PooledFloats in = take(host_, job_.bytes());
    fill(job_, slot.step, in.get());
    EXAMPLES_CHECK(cudaMemcpyAsync(slot.on_gpu.get(), in.get(), job_.bytes(), cudaMemcpyHostToDevice, up_.get()));
    host_.record_stream(in.get(), up_.get());
    slot.arrived.record(up_);
  }

  // Here the host waits, if at all.
  void finish(Slot& slot) {
    if (slot.step < 0) return;
    slot.returned.synchronize();
    results_.check(slot.step, slot.out.get());
    slot.out.reset();
    slot.step = -1;
  }

  const Job job_;
  cachalot::PinnedHostAllocator& host_;
  Results& results_;
  const Stream up_;
  const Stream work_;
  const Stream down_;
  std::vector<Slot> slots_;  // before the streams go, so that their memory can go back in their order
};

}  // namespace

double pageable(const Job& job, cachalot::CachingAllocator& gpu, Results& results) {
  const Stream stream;
  const cachalot::Allocation on_gpu = cachalot::allocate_owned(gpu, job.bytes(), 0, stream.get());
  std::vector<float> in(job.count);
  std::vector<float> out(job.count);
  const double all_us = examples::microseconds([&] {
    for (int step = 0; step < job.steps; ++step) {
      fill(job, step, in.data());
      step_in_turn(job, in.data(), floats(on_gpu), out.data(), stream);
      results.check(step, out.data());
    }
  });
  return all_us / job.steps;
}

double pinned_at_each_step(const Job& job, cachalot::CachingAllocator& gpu, Results& results) {
  const Stream stream;
  const cachalot::Allocation on_gpu = cachalot::allocate_owned(gpu, job.bytes(), 0, stream.get());
  const double all_us = examples::microseconds([&] {
    for (int step = 0; step < job.steps; ++step) {
      const auto in = pin(job.bytes());
      const auto out = pin(job.bytes());
      fill(job, step, in.get());
      step_in_turn(job, in.get(), floats(on_gpu), out.get(), stream);
      results.check(step, out.get());
    }
  });
  return all_us / job.steps;
}

double overlapped(const Job& job, cachalot::CachingAllocator& gpu, cachalot::PinnedHostAllocator& host, int buffers,
                  Results& results) {
  Pipeline pipeline(job, gpu, host, buffers, results);
  return examples::microseconds([&] { pipeline.run(); }) / job.steps;
}

}  // namespace async_transfer
