#include "simulator/nccl/bootstrap.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/format.h"
#include "simulator/nccl/errors.h"

namespace cachalot::simulator::nccl {
namespace {

// Why the ranks that have come cannot be a communicator; "" if they can.
std::string why_not(const std::vector<Join>& joins) {
  const Join& last = joins.back();
  for (const Join& other : joins) {
    if (&other == &last) break;
    if (other.ranks != last.ranks) {
      return formatted("rank {} says that the communicator has {} ranks, and rank {} says {}", other.rank, other.ranks,
                       last.rank, last.ranks);
    }
    if (other.rank == last.rank) return formatted("two callers are rank {} of the communicator", last.rank);
    if (other.member.device == last.member.device) {
      return formatted("Duplicate GPU detected: rank {} and rank {} both on CUDA device {}", other.rank, last.rank,
                       last.member.device);
    }
  }
  return "";
}

std::vector<Member> members_by_rank(const std::vector<Join>& joins) {
  std::vector<Member> members(joins.size());
  for (const Join& join : joins) members[static_cast<std::size_t>(join.rank)] = join.member;
  return members;
}

}  // namespace

std::optional<Answer> Bootstrap::add(const Join& join) {
  const std::lock_guard lock(mutex_);
  if (const auto refused = refused_.find(join.number); refused != refused_.end()) {
    Answer answer = refused->second;
    answer.to = {join};
    return answer;
  }
  std::vector<Join>& joins = waiting_[join.number];
  joins.push_back(join);
  Answer answer{.number = join.number, .reason = why_not(joins), .members = {}, .to = {}};
  if (!answer.reason.empty())
    answer.result = ncclInvalidUsage;
  else if (joins.size() < static_cast<std::size_t>(join.ranks))
    return std::nullopt;
  else
    answer.members = members_by_rank(joins);
  if (answer.result != ncclSuccess) refused_[join.number] = answer;
  answer.to = std::move(joins);
  waiting_.erase(join.number);
  return answer;
}

std::vector<Answer> Bootstrap::note_gone(const Endpoint& process) {
  const std::lock_guard lock(mutex_);
  std::vector<Answer> answers;
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const auto gone = std::ranges::find(at->second, process, [](const Join& join) { return join.member.process; });
    if (gone == at->second.end()) {
      ++at;
      continue;
    }
    Answer answer{.number = at->first,
                  .result = ncclRemoteError,
                  .reason = formatted("the process of rank {} has ended before all ranks came", gone->rank),
                  .members = {},
                  .to = {}};
    refused_[at->first] = answer;
    answer.to = std::move(at->second);
    answers.push_back(std::move(answer));
    at = waiting_.erase(at);
  }
  return answers;
}

std::vector<char> pack(const Answer& answer) {
  const std::size_t bytes = answer.members.size() * sizeof(Member);
  std::vector<char> content(sizeof(answer.result) + bytes);
  std::memcpy(content.data(), &answer.result, sizeof(answer.result));
  if (bytes > 0) std::memcpy(content.data() + sizeof(answer.result), answer.members.data(), bytes);
  content.insert(content.end(), answer.reason.begin(), answer.reason.end());
  return content;
}

std::vector<Member> unpack_members(const std::vector<char>& content) {
  ncclResult_t result = ncclInternalError;
  if (content.size() < sizeof(result)) throw NcclError(result, "the bootstrap's answer is too short");
  std::memcpy(&result, content.data(), sizeof(result));
  const char* const rest = content.data() + sizeof(result);
  const std::size_t bytes = content.size() - sizeof(result);
  if (result != ncclSuccess) throw NcclError(result, std::string(rest, bytes));
  std::vector<Member> members(bytes / sizeof(Member));
  if (bytes > 0) std::memcpy(static_cast<void*>(members.data()), rest, members.size() * sizeof(Member));
  return members;
}

}  // namespace cachalot::simulator::nccl
