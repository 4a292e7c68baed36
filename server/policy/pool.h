// The GPUs of a server, what is promised of them, and the queue of sessions that wait for room: placement and
// admission as a state machine. Events go in (a session asks, ends, is cancelled, time passes, the policy changes),
// decisions come out.
//
// What is promised. A session belongs to a job: that of its request, or one of its own. The first session of a job
// decides which GPUs the job has and its quota of each. A job with a quota is promised that much of each of its GPUs,
// and each of its sessions the memory of a context on each GPU that it sees. All promises of a device together fit the
// device, or its memory times Rules::overcommit. A job without a quota is promised nothing. The GPUs of an exclusive
// job have no other job on them.
//
// Which GPUs. A session that names a number of GPUs, or whose tenant has a limit or a default below the server's
// number, gets that many: by Rules::placement among those with room. The promise covers all of them. Any other session
// gets all GPUs and is promised memory of those that it sees (CUDA_VISIBLE_DEVICES). In both cases the program's
// CUDA_VISIBLE_DEVICES chooses among the job's GPUs, numbered from 0 in the server's order.
//
// The queue's order. Further sessions of running jobs first, since the job may not go on without them; then by
// priority; then by arrival. The queue is examined in this order after every event, and each session that fits is
// admitted:
//   - A session that does not fit reserves as many GPUs as it needs, those that lack least. Sessions behind it use
//     other GPUs, never these. So what a large session lacks never grows while it is first: nothing
//     new comes to its GPUs, and it changes them only for better ones.
//   - A session that its tenant's own limits hold up (sessions, total_gpus, total_memory) reserves nothing; the
//     tenant's later sessions wait behind it, others do not.
//   - A session of a job whose first session waits as well waits for that one.
// A high priority may make a lower one wait without end; Rules::queue_time ends that with a refusal.
//
// Live changes. Lower limits end no session. Waiting sessions are judged by the limits of now, running ones keep what
// they were promised until change_memory().
//
// Ownership: values. Threads: one at a time. Errors: decisions; the reason is a sentence with figures, for the
// client's user. Units: bytes; milliseconds of any clock that does not go back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/quotas.h"
#include "common/result.h"
#include "common/session_class.h"
#include "common/visible_devices.h"
#include "server/policy/policy.h"

namespace gpupool::policy {

struct Device {
    std::string name;
    DeviceUuid uuid{};
    std::uint64_t total_bytes = 0;
    std::uint64_t context_bytes = 0;    // of one context; 0: not measured
    std::uint64_t set_aside_bytes = 0;  // for workers in stock
};

// What a client asks for. It may get less (docs/configuration.md).
struct Wishes {
    std::optional<std::size_t> gpus;
    Quotas memory;  // by the server's numbers of devices; with `gpus` only of each
    std::optional<SessionClass> session_class;
    std::optional<std::uint64_t> priority;
    milliseconds wait{0};  // at most, for room; 0: not at all
};

struct Request {
    std::string session;  // id
    std::string tenant;
    std::string job;  // unique among the tenants; empty: a job of its own
    Wishes wishes;
    std::optional<std::string> visible;  // CUDA_VISIBLE_DEVICES, if the program sets it
};

// A session got its place.
struct Grant {
    std::string session;
    std::string tenant;
    std::string job;
    std::vector<std::size_t> devices;  // the job's, by the server's numbers; the session's device i is devices[i]
    std::vector<std::uint64_t> memory_bytes;  // the job's quota of each of them; 0: none
    std::vector<std::size_t> seen;            // those that CUDA_VISIBLE_DEVICES chooses, by the server's numbers
    SessionClass session_class = SessionClass::shared;
    std::uint64_t priority = 0;
    bool whole = false;  // all of `devices` are promised, also those that no session sees
};

struct Refusal {
    std::string session;
    std::string message;
    bool later = false;  // it may have room another time
};

struct Waiting {
    std::string session;
    std::size_t position = 0;  // from 1
    std::size_t length = 0;    // of the queue
    std::string why;
};

using Decision = std::variant<Grant, Refusal, Waiting>;

// What a tenant has at the moment.
struct TenantUse {
    std::size_t sessions = 0;
    std::size_t gpus = 0;            // counted once for each job that has it
    std::uint64_t memory_bytes = 0;  // of its jobs' quotas; without a quota a whole device

    bool operator==(const TenantUse&) const = default;
};

class Pool {
  public:
    // The most sessions of one job.
    static constexpr std::size_t kMaxJobSessions = 256;

    Pool(std::vector<Device> devices, std::shared_ptr<const Policy> policy);

    // Events. What they bring about is then in take().
    void request(Request request, std::int64_t now_ms);
    // A session has ended, with its worker process; or a waiting one is not wanted any more.
    void end(const std::string& session);
    // Ends the waiting of those whose time is over.
    void advance(std::int64_t now_ms);
    void set_policy(std::shared_ptr<const Policy> policy);
    // A session that an earlier daemon admitted. It counts even if there is no room for it.
    void adopt(Grant grant);
    // Gives the session's job other quotas, by the server's numbers. Fails, and changes nothing, if there is no room
    // for more.
    Status change_memory(const std::string& session, const Quotas& memory);
    // Memory of a device that sessions use, whether promised or not. Only the choice among devices considers it.
    void set_used(std::size_t device, std::uint64_t bytes) { used_[device] = bytes; }
    void set_aside(std::size_t device, std::uint64_t bytes);

    // The decisions since the last call, in their order.
    std::vector<Decision> take();
    // When advance() is due.
    [[nodiscard]] std::optional<std::int64_t> next_deadline_ms() const;

    [[nodiscard]] std::uint64_t set_aside_bytes(std::size_t device) const { return devices_[device].set_aside_bytes; }
    [[nodiscard]] bool has_room(std::size_t device, std::uint64_t bytes) const;
    [[nodiscard]] std::uint64_t promised_bytes(std::size_t device) const { return promised_[device]; }
    [[nodiscard]] std::size_t jobs_on(std::size_t device) const { return jobs_on_[device]; }
    [[nodiscard]] bool is_exclusive(std::size_t device) const { return exclusive_[device] > 0; }
    [[nodiscard]] TenantUse use_of(const std::string& tenant) const;
    [[nodiscard]] std::size_t running() const { return sessions_.size(); }
    [[nodiscard]] const Grant* find(const std::string& session) const;
    // The queue, in its order.
    [[nodiscard]] std::vector<Waiting> queue();

  private:
    struct Job {
        std::string name;
        std::string tenant;
        std::vector<std::size_t> devices;
        std::vector<std::uint64_t> quota_bytes;    // by the server's devices
        std::vector<std::size_t> sessions_seeing;  // likewise
        std::size_t sessions = 0;
        SessionClass session_class = SessionClass::shared;
        std::uint64_t priority = 0;
        bool whole = false;

        [[nodiscard]] bool holds(std::size_t device) const;
    };
    // What a first session of a job asks for, within its tenant's limits.
    struct Demand {
        bool whole = false;
        std::size_t gpus = 0;                    // whole: how many
        std::vector<std::size_t> exact;          // not whole: which
        std::vector<std::uint64_t> quota_bytes;  // of each of the server's devices
        std::vector<bool> suits;                 // whole: which devices are large enough
        SessionClass session_class = SessionClass::shared;
        std::uint64_t priority = 0;
        std::uint64_t charge_bytes = 0;  // against total_memory, at most
    };
    struct Entry {
        Request request;
        std::uint64_t number = 0;  // of arrivals
        std::int64_t deadline_ms = 0;
        std::variant<std::string, Demand> demand;  // or why it cannot be met
        std::vector<std::size_t> reserved;
        std::size_t told_position = 0;
    };
    struct Session {
        Grant grant;
        std::shared_ptr<Job> job;
    };
    enum class Obstacle : std::uint8_t {
        none,        // it can be admitted
        impossible,  // never, by the limits of now
        server,      // Rules::sessions
        tenant,      // its tenant's limits
        job,         // the job's first session waits, or the job has too many sessions
        room,
    };
    struct Verdict {
        Obstacle obstacle = Obstacle::none;
        std::vector<std::size_t> devices;  // to use, or to reserve
    };
    using Marks = std::vector<bool>;  // of devices
    using Visit = std::function<bool(std::list<Entry>::iterator, const Verdict&, const Marks&)>;

    [[nodiscard]] const Effective& limits_of(const std::string& tenant) const;
    [[nodiscard]] std::uint64_t capacity(std::size_t device) const;
    [[nodiscard]] std::uint64_t largest_quota(std::size_t device) const;
    [[nodiscard]] std::uint64_t charge(std::size_t device, std::uint64_t quota_bytes) const;
    [[nodiscard]] std::uint64_t need(std::size_t device, std::uint64_t quota_bytes) const;
    [[nodiscard]] std::vector<std::size_t> all_devices() const;
    [[nodiscard]] std::vector<std::size_t> seen_among(const std::vector<std::size_t>& devices,
                                                      const std::optional<std::string>& visible) const;

    [[nodiscard]] std::variant<std::string, Demand> resolve(const Request& request) const;
    [[nodiscard]] std::optional<std::string> choose_memory(const Request& request, const Effective& limits,
                                                           Demand& demand) const;
    [[nodiscard]] std::optional<std::string> choose_number(const Request& request, const Effective& limits,
                                                           Demand& demand) const;
    [[nodiscard]] std::optional<std::string> check_possible(const Request& request, const Effective& limits,
                                                            Demand& demand) const;

    [[nodiscard]] bool fits(std::size_t device, const Demand& demand) const;
    [[nodiscard]] Verdict judge(const Entry& entry, const Marks& reserved) const;
    [[nodiscard]] Verdict judge_first(const Entry& entry, const Demand& demand, const Marks& reserved) const;
    [[nodiscard]] Verdict judge_further(const Entry& entry, const Job& job) const;
    [[nodiscard]] std::vector<std::size_t> choose(const Demand& demand, const Marks& reserved) const;
    [[nodiscard]] std::vector<std::size_t> lacking_least(const Entry& entry, const Demand& demand,
                                                         const Marks& reserved) const;
    [[nodiscard]] std::shared_ptr<Job> job_of(const Request& request) const;
    // The texts for people.
    [[nodiscard]] std::string explain(const Entry& entry, const Verdict& verdict, const Marks& reserved) const;
    [[nodiscard]] std::string explain_room(const Entry& entry, const Marks& reserved) const;
    [[nodiscard]] std::string explain_tenant(const Entry& entry) const;
    [[nodiscard]] std::string describe(std::size_t device, const Marks& reserved) const;
    [[nodiscard]] std::string why(const Entry& entry);

    void admit(const Entry& entry, const std::vector<std::size_t>& devices);
    void enter(const std::shared_ptr<Job>& job, Grant grant);
    void leave(const Session& session);
    void take_device(Job& job, std::size_t device);
    void give_back_device(Job& job, std::size_t device);
    // Sorts the queue and judges its sessions one after another, until `visit` returns false.
    void examine(const Visit& visit);
    // Admits whom it can, in the queue's order, until no other fits.
    void admit_waiting();
    void tell_positions();
    void refuse(std::list<Entry>::iterator entry, std::string message, bool later);

    std::vector<Device> devices_;
    std::shared_ptr<const Policy> policy_;
    mutable std::map<std::string, Effective> limits_;  // of policy_, as they were asked for
    std::vector<std::uint64_t> promised_, used_;
    std::vector<std::size_t> jobs_on_;
    std::vector<std::size_t> exclusive_;                // jobs that have it alone; more than one only after adopt()
    std::map<std::string, std::shared_ptr<Job>> jobs_;  // by name
    std::map<std::string, Session> sessions_;           // by id
    std::map<std::string, TenantUse> uses_;
    std::list<Entry> queue_;
    std::uint64_t arrivals_ = 0;
    std::vector<Decision> decisions_;
};

}  // namespace gpupool::policy
