// The ranks of new communicators meet in the process that made the unique id: each tells it where it can be reached, and
// gets the list of all when the last has come. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "simulator/nccl/abi.h"
#include "simulator/nccl/wire.h"

namespace cachalot::simulator::nccl {

// Where a rank is.
struct Member {
  Endpoint process;
  int device = 0;  // by its number on the machine, whatever CUDA_VISIBLE_DEVICES makes of it
};

// What ncclUniqueId holds.
struct UniqueId {
  char magic[8] = {'c', 'a', 'c', 'h', 'a', 'l', 'o', 't'};
  Endpoint root;
  std::uint64_t number = 0;  // of the communicator
};

struct Join {
  std::uint64_t number = 0;
  int ranks = 0;
  int rank = 0;
  Member member;
};

// The answer to every rank of a communicator: its members, or why there is none.
struct Answer {
  std::uint64_t number = 0;
  ncclResult_t result = ncclSuccess;
  std::string reason;
  std::vector<Member> members;  // by rank, if there is no error
  std::vector<Join> to;
};

class Bootstrap {
 public:
  // Returns the answer when it can be given: the last rank has come, or this one does not fit.
  std::optional<Answer> add(const Join& join);
  // A process has ended: returns the answers for the communicators that it was to be in.
  std::vector<Answer> note_gone(const Endpoint& process);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<Join>> waiting_;
  std::map<std::uint64_t, Answer> refused_;  // by number: ranks that come later get the same answer
};

// An answer as the content of a letter.
std::vector<char> pack(const Answer& answer);
// Returns the members. Throws the NcclError that the answer is.
std::vector<Member> unpack_members(const std::vector<char>& content);

}  // namespace cachalot::simulator::nccl
