#include "simulator/nccl/mailboxes.h"

#include <utility>

namespace cachalot::simulator::nccl {

void Mailboxes::deliver(const BoxKey& key, Letter letter, bool is_empty) {
  const std::lock_guard lock(mutex_);
  if (forgotten_.contains({key.communicator, key.destination})) return;
  Box& box = boxes_[key];
  box.last_number = letter.number;
  if (!is_empty) box.letters.push_back(std::move(letter));
  changed_.notify_all();
}

void Mailboxes::note_left(std::uint64_t communicator, int source, int destination) {
  const std::lock_guard lock(mutex_);
  if (forgotten_.contains({communicator, destination})) return;
  for (const Channel channel : {Channel::collectives, Channel::pairs})
    boxes_[{communicator, channel, source, destination}].left = true;
  changed_.notify_all();
}

void Mailboxes::note_gone(const Endpoint& process) {
  const std::lock_guard lock(mutex_);
  gone_.insert(process);
  changed_.notify_all();
}

void Mailboxes::forget(std::uint64_t communicator, int destination) {
  const std::lock_guard lock(mutex_);
  forgotten_.insert({communicator, destination});
  std::erase_if(boxes_, [&](const auto& entry) {
    return entry.first.communicator == communicator && entry.first.destination == destination;
  });
}

void Mailboxes::wake_all() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

Mailboxes::Outcome Mailboxes::take(const BoxKey& key, std::uint64_t number, const Endpoint& sender,
                                   const std::atomic<bool>& stop, std::chrono::steady_clock::time_point until,
                                   Letter& letter) {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (stop) return Outcome::stopped;
    Box& box = boxes_[key];
    while (!box.letters.empty() && box.letters.front().number < number) box.letters.pop_front();
    if (!box.letters.empty() && box.letters.front().number == number) {
      letter = std::move(box.letters.front());
      box.letters.pop_front();
      return Outcome::taken;
    }
    if (box.last_number >= number) return Outcome::other_call;
    if (is_gone(box, sender)) return Outcome::gone;
    if (changed_.wait_until(lock, until) == std::cv_status::timeout) return Outcome::still_waiting;
  }
}

bool Mailboxes::may_arrive(const BoxKey& key, std::uint64_t number, const Endpoint& sender) {
  const std::lock_guard lock(mutex_);
  const Box& box = boxes_[key];
  return box.last_number >= number || !is_gone(box, sender);
}

}  // namespace cachalot::simulator::nccl
