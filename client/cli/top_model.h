// What `gpupool top` knows: the latest status, and a history of each session.
//
// Ownership: values. Threads: one at a time. Errors: none. A session that is no longer in the status is forgotten.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/cli/administration.h"

namespace gpupool::cli {

enum class TopSort : std::uint8_t { memory, copied, age, tenant };
inline constexpr std::size_t kTopSorts = 4;
std::string_view name_of(TopSort sort);

class TopModel {
  public:
    using TimePoint = std::chrono::steady_clock::time_point;

    static constexpr std::size_t kHistory = 120;  // samples of a session

    struct Session {
        SessionStatus now;
        std::deque<std::uint64_t> memory_bytes;       // the newest last
        std::deque<std::uint64_t> copied_per_second;  // in both directions

        [[nodiscard]] std::uint64_t copied_now() const {
            return copied_per_second.empty() ? 0 : copied_per_second.back();
        }

      private:
        friend class TopModel;
        std::uint64_t copied_bytes = 0;  // at the last sample
    };

    void update(ServerStatus status, TimePoint now);
    // The server has not answered. The status stays.
    void lose(std::string why, TimePoint now);

    [[nodiscard]] const ServerStatus& status() const { return status_; }
    // Why the server does not answer; nullopt: it does.
    [[nodiscard]] const std::optional<std::string>& lost() const { return lost_; }
    [[nodiscard]] std::uint64_t lost_seconds(TimePoint now) const;

    void next_sort() { sort_ = static_cast<TopSort>((static_cast<std::size_t>(sort_) + 1) % kTopSorts); }
    void set_sort(TopSort sort) { sort_ = sort; }
    void reverse() { reversed_ = !reversed_; }
    [[nodiscard]] TopSort sort() const { return sort_; }
    [[nodiscard]] bool reversed() const { return reversed_; }

    // Shows one tenant's sessions; empty: all.
    void set_tenant(std::string tenant) { tenant_ = std::move(tenant); }
    // All, then each tenant of the status in turn.
    void next_tenant();
    [[nodiscard]] const std::string& tenant() const { return tenant_; }

    // The sessions to show, in their order.
    [[nodiscard]] std::vector<const Session*> sessions() const;
    [[nodiscard]] std::vector<const WaitingRequest*> queue() const;

  private:
    ServerStatus status_;
    std::map<std::string, Session> sessions_;  // by id
    std::optional<TimePoint> updated_;
    std::optional<std::string> lost_;
    TimePoint lost_since_;
    TopSort sort_ = TopSort::memory;
    bool reversed_ = false;
    std::string tenant_;
};

}  // namespace gpupool::cli
