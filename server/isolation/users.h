// Gives each worker a user id of its own, from a range that nothing else on the machine uses.
//
// An id is free if no process of it can be seen and none was given out that was not returned. A worker's group has the
// same number.
//
// Ownership: values. Threads: one. Errors: messages say what to change in the configuration.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>

#include "common/result.h"

namespace gpupool::isolation {

struct UserRange {
    uid_t first = 0;
    uid_t last = 0;

    [[nodiscard]] bool has(uid_t user) const { return first != 0 && user >= first && user <= last; }
};

// "FIRST-LAST", without 0 (root) and the ids that mean "none".
Result<UserRange> parse_users(const std::string& text);

// Why this process cannot start others as any user of the range; nullopt if it can.
std::optional<std::string> users_unavailable(const UserRange& range);

class Users {
  public:
    explicit Users(UserRange range) : range_(range) {}

    [[nodiscard]] const UserRange& range() const { return range_; }
    // nullopt if none is free.
    std::optional<uid_t> take();
    // A worker of an earlier daemon has it.
    void adopt(uid_t user);
    void give_back(uid_t user) { given_.erase(user); }

  private:
    UserRange range_;
    std::set<uid_t> given_;
    uid_t next_ = 0;
};

}  // namespace gpupool::isolation
