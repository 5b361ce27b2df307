// One thread of a soak: allocates until the device is full, uses, hands over and frees, as its dice say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/soak/latencies.h"
#include "tests/soak/world.h"

namespace cachalot {

class SoakWorker {
 public:
  struct Figures {
    std::uint64_t operations = 0;
    std::uint64_t out_of_memory = 0;
    std::uint64_t failed_calls = 0;
    Latencies allocate, deallocate;
  };

  SoakWorker(SoakWorld& world, unsigned number) : world_(world), number_(number), random_(number) {}

  void warm_up();  // before the soak, alone: once, more is live than ever will be again
  void run();      // until the soak is over
  void give_up();  // frees everything; nothing fails any more

  // To be called while all threads stand still.
  std::size_t live() const { return blocks_.size(); }
  std::size_t live_buffers() const { return buffers_.size(); }
  const Figures& figures() const { return figures_; }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  Stream some_stream() { return world_.stream(below(2) == 0 ? number_ : below(SoakWorld::kStreams)); }
  std::size_t some_size();
  AllocateOptions some_place();

  template <typename Action>
  bool attempt(Action&& action);
  void step();
  void allocate(std::size_t bytes);
  void deallocate(std::size_t which);
  void make_room();
  void use_elsewhere(SoakBlock& block);
  void exchange();
  void use_pool();
  void use_host_memory();

  SoakWorld& world_;
  const unsigned number_;
  std::mt19937_64 random_;
  std::vector<SoakBlock> blocks_;
  std::vector<PooledTensor> tensors_;
  std::vector<void*> buffers_;
  Figures figures_;
};

}  // namespace cachalot
