// A group of threads of the host that act as one, in the place of a warp: so that the code that a warp runs, with its
// ranks and shares of a word, is tested without a GPU.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cachalot/one_thread.h"

namespace cachalot {

class Gang {
 public:
  using Word = unsigned long long;

  unsigned size() const { return static_cast<unsigned>(shared_->values.size()); }
  unsigned rank() const { return rank_; }
  std::uint32_t start() const { return shared_->start; }

  Gang with_same(std::uint64_t value) const {
    publish(value);
    unsigned first = size();
    unsigned members = 0;
    unsigned rank = 0;
    for (unsigned i = size(); i-- > 0;) {
      if (shared_->values[i] != value) continue;
      first = i;
      ++members;
      if (i < rank_) ++rank;
    }
    if (rank == 0) shared_->parts[first] = std::make_shared<Shared>(members, shared_->start);
    meet();
    const std::shared_ptr<Shared> part = shared_->parts[first];
    meet();
    return Gang(part, rank);
  }
  Word either(Word bits) const {
    publish(bits);
    Word all = 0;
    for (const Word value : shared_->values) all |= value;
    meet();
    return all;
  }

  Word load(Word* word) const {
    return once([&] { return OneThread().load(word); });
  }
  Word fetch_add(Word* word, Word value) const {
    return once([&] { return OneThread().fetch_add(word, value); });
  }
  Word fetch_or(Word* word, Word bits) const {
    return once([&] { return OneThread().fetch_or(word, bits); });
  }
  Word fetch_and(Word* word, Word bits) const {
    return once([&] { return OneThread().fetch_and(word, bits); });
  }
  void fetch_max(Word* word, Word value) const {
    once([&] {
      OneThread().fetch_max(word, value);
      return Word{0};
    });
  }
  void acquire() const { meet(); }
  void release() const { meet(); }

  // Runs `body` as each of `size` members, which begin to search at `start`.
  static void run(unsigned size, std::uint32_t start, const std::function<void(const Gang&)>& body) {
    const auto shared = std::make_shared<Shared>(size, start);
    std::vector<std::jthread> members;
    for (unsigned rank = 0; rank < size; ++rank) members.emplace_back([=] { body(Gang(shared, rank)); });
  }

 private:
  struct Shared {
    Shared(unsigned size, std::uint32_t in_start)
        : start(in_start), values(size), parts(size), meeting(static_cast<std::ptrdiff_t>(size)) {}
    const std::uint32_t start;
    std::vector<Word> values;  // of each member
    std::vector<std::shared_ptr<Shared>> parts;
    Word result = 0;
    std::barrier<> meeting;
  };
  Gang(std::shared_ptr<Shared> shared, unsigned rank) : shared_(std::move(shared)), rank_(rank) {}

  void meet() const { shared_->meeting.arrive_and_wait(); }
  void publish(Word value) const {
    shared_->values[rank_] = value;
    meet();
  }
  template <typename Action>
  Word once(const Action& action) const {
    if (rank_ == 0) shared_->result = action();
    meet();
    const Word result = shared_->result;
    meet();
    return result;
  }

  std::shared_ptr<Shared> shared_;
  unsigned rank_;
};

}  // namespace cachalot
