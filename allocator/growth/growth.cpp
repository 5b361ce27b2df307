#include "growth/growth.h"

CACHALOT_BEGIN

// What holds for memory of the device's malloc.
Block* Growth::find_beside(Request /*request*/, const Held& /*held*/) { return nullptr; }
Block& Growth::cut_contiguous(Block& block, Request /*request*/, const Held& /*held*/) { return block; }
bool Growth::has_leftovers(const PrivatePool& /*pool*/, const Held& /*held*/) const { return false; }
void Growth::release_addresses(const PrivatePool& /*pool*/, Growing& /*growing*/) {}
PoolKind Growth::reserved_in(const Block& head, const Held& /*held*/) const { return head.arena->pool.kind(); }
std::size_t Growth::asleep_bytes(Address /*begin*/, Address /*end*/, const Held& /*held*/) const { return 0; }
std::size_t Growth::handle_count(const Block& /*block*/, const Held& /*held*/) const { return 1; }
std::vector<AddressRange> Growth::mapped_addresses(const Held& /*held*/) const { return {}; }
void Growth::separate_kinds(PrivatePool& /*pool*/, Growing& /*growing*/) {}
std::string Growth::validate(const Held& /*held*/) const { return ""; }
std::size_t Growth::metadata_bytes(const Held& /*held*/) const { return sizeof(*this); }

CACHALOT_END
