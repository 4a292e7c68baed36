// Random events on random servers, each step checked against a model of its own:
//   - what is promised is what the grants say, and never grows beyond the device;
//   - an exclusive job is alone, and the processes of a job have the same devices;
//   - the limits of tenants and of the server are never passed by an admission;
//   - the first session of the queue does not fit, however it is tried; nor does any other that none ahead could get
//     in the way of. So no wake-up is lost;
//   - what the first one lacks never grows while it is first, so it is not starved;
//   - a session that is refused for good would not fit an empty server, one that is refused for now does not fit now;
//   - positions follow priority and arrival;
//   - when all have ended, the queue is empty and nothing is promised.
#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <set>
#include <tuple>

#include "tests/unit/policy/pool_fixture.h"

namespace gpupool::policy {
namespace {

// A sanitized build without optimization takes 40 times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kRounds = 50;
constexpr std::size_t kStepsEach = 1000;
#else
constexpr std::size_t kRounds = 200;
constexpr std::size_t kStepsEach = 5000;
#endif

const std::vector<const char*> kPolicies = {
    "[placement]\npolicy = \"pack\"\n[tenants]\nclass = \"exclusive\"",
    "[placement]\npolicy = \"spread\"\n[tenants]\nclass = \"exclusive\"\ngpus = 2\npriority = 60",
    "[placement]\novercommit = 1.5\nqueue_length = 6\n[tenants]\nclass = \"exclusive\"\nsessions = 4\n"
    "[tenant.t1]\npriority = 90\ntotal_gpus = 3",
    "[limits]\nsessions = 6\n[placement]\nqueue_time = \"40s\"\n[tenants]\nmemory = \"20GiB\"\ntotal_memory = "
    "\"50GiB\"",
    "[tenants]\nclass = \"exclusive\"\ndefault_gpus = 1\ndefault_memory = \"6GiB\"\n[tenant.t2]\nsessions = 0",
};

std::uint64_t text_number(const std::string& session) {
    return std::stoull(session.substr(1));
}

// What a session asks for under the limits of now, worked out anew.
struct Need {
    bool possible = false;
    bool counted = false;  // so many, whichever
    std::size_t gpus = 0;
    std::vector<std::size_t> which;
    std::vector<std::uint64_t> quota;
    std::vector<bool> suits;
    bool alone = false;
    std::uint64_t priority = 0;
    std::uint64_t memory = 0;  // at most, of the tenant's total
};

class Model {
  public:
    Model(std::vector<Device> devices, std::shared_ptr<const Policy> policy)
        : devices_(std::move(devices)), policy_(std::move(policy)) {
        for (const char* tenant : {"t0", "t1", "t2"}) {
            limits_[tenant] = policy_->limits(tenant);
        }
    }

    struct Job {
        Grant grant;
        std::set<std::string> sessions;
    };

    void change(std::shared_ptr<const Policy> policy) { *this = Model(std::move(*this), std::move(policy)); }

    Need need(const Request& request) const {
        const Effective& limits = limits_.at(request.tenant);
        const Wishes& wishes = request.wishes;
        Need need;
        need.alone = wishes.session_class == SessionClass::exclusive;
        need.priority = std::min(wishes.priority.value_or(limits.priority), limits.priority);
        const std::uint64_t most = std::min(limits.gpus, limits.total_gpus);
        const std::uint64_t wanted = wishes.gpus ? *wishes.gpus : std::min(limits.default_gpus, most);
        need.counted = wishes.gpus || wanted < devices_.size();
        need.gpus = static_cast<std::size_t>(std::min<std::uint64_t>(wanted, devices_.size()));
        for (std::size_t i = 0; i < devices_.size(); ++i) {
            if (!need.counted && (!request.visible || *request.visible == std::to_string(i))) {
                need.which.push_back(i);
            }
            const std::uint64_t asked = wishes.memory.each_bytes.value_or(0);
            std::uint64_t quota = asked != 0 ? asked : limits.default_memory.bytes(i);
            quota = quota == 0 ? limits.memory.bytes(i) : quota;
            quota = limits.memory.bytes(i) == 0 ? quota : std::min(quota, limits.memory.bytes(i));
            const std::uint64_t physical = devices_[i].total_bytes - devices_[i].context_bytes;
            need.suits.push_back(asked == 0 || quota <= physical);
            need.quota.push_back(std::min(quota, physical));
        }
        std::vector<std::uint64_t> charges;
        for (std::size_t i = 0; i < devices_.size(); ++i) {
            if (need.counted ? bool(need.suits[i]) : std::count(need.which.begin(), need.which.end(), i) > 0) {
                charges.push_back(need.quota[i] == 0 ? devices_[i].total_bytes : need.quota[i]);
            }
        }
        const std::size_t count = need.counted ? need.gpus : need.which.size();
        std::sort(charges.rbegin(), charges.rend());
        for (std::size_t i = 0; i < std::min(count, charges.size()); ++i) {
            need.memory += charges[i];
        }
        need.possible = (!wishes.gpus || (*wishes.gpus <= devices_.size() && *wishes.gpus <= most)) &&
                        (!need.alone || limits.session_class == SessionClass::exclusive) && limits.sessions > 0 &&
                        (!need.counted || charges.size() >= count) && count <= limits.total_gpus &&
                        need.memory <= limits.total_memory_bytes;
        return need;
    }

    std::uint64_t promised(std::size_t device) const { return promised_[device]; }

    // Jobs on a device, and whether one of them has it alone.
    std::size_t jobs_on(std::size_t device) const { return jobs_on_[device]; }
    bool taken_alone(std::size_t device) const { return alone_[device]; }
    const std::map<std::string, Job>& jobs() const { return jobs_; }
    std::size_t running() const { return sessions_.size(); }
    TenantUse use(const std::string& tenant) const {
        const auto found = uses_.find(tenant);
        return found == uses_.end() ? TenantUse() : found->second;
    }

    std::uint64_t capacity(std::size_t device) const {
        return static_cast<std::uint64_t>(static_cast<double>(devices_[device].total_bytes) *
                                          policy_->rules().overcommit);
    }

    bool has_room(std::size_t device, const Need& need) const {
        const std::uint64_t bytes = need.quota[device] == 0 ? 0 : need.quota[device] + devices_[device].context_bytes;
        return !alone_[device] && (!need.alone || jobs_on_[device] == 0) &&
               (bytes == 0 || promised_[device] + bytes <= capacity(device));
    }

    bool within_limits(const Request& request, const Need& need) const {
        const Effective& limits = limits_.at(request.tenant);
        const TenantUse now = use(request.tenant);
        const std::size_t gpus = need.counted ? need.gpus : need.which.size();
        return running() < policy_->rules().sessions && now.sessions + 1 <= limits.sessions &&
               now.gpus + gpus <= limits.total_gpus &&
               (limits.total_memory_bytes == kNoLimit || now.memory_bytes + need.memory <= limits.total_memory_bytes);
    }

    // Whether a first session of a job would fit now, on devices that are not in `without`.
    bool fits(const Request& request, const Need& need, const std::set<std::size_t>& without = {}) const {
        if (!within_limits(request, need)) {
            return false;
        }
        if (!need.counted) {
            return std::all_of(need.which.begin(), need.which.end(),
                               [&](std::size_t device) { return !without.contains(device) && has_room(device, need); });
        }
        std::size_t with_room = 0;
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            with_room += need.suits[device] && !without.contains(device) && has_room(device, need) ? 1 : 0;
        }
        return with_room >= need.gpus;
    }

    // What it lacks of the devices that lack least.
    std::vector<std::pair<std::size_t, std::uint64_t>> lack(const Need& need) const {
        std::vector<std::pair<std::size_t, std::uint64_t>> all;
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            if (need.suits[device]) {
                const std::uint64_t wanted = promised_[device] + need.quota[device] + devices_[device].context_bytes;
                all.emplace_back(need.alone || alone_[device] ? jobs_on_[device] : 0,
                                 need.quota[device] == 0 ? 0 : wanted - std::min(wanted, capacity(device)));
            }
        }
        std::sort(all.begin(), all.end());
        all.resize(std::min(all.size(), need.gpus));
        return all;
    }

    // Returns whether the session is a further one of a running job.
    bool grant(const Grant& grant) {
        Job& job = jobs_[grant.job];
        const bool further = !job.sessions.empty();
        if (further) {
            EXPECT_EQ(job.grant.devices, grant.devices);
            EXPECT_EQ(job.grant.memory_bytes, grant.memory_bytes);
            EXPECT_EQ(job.grant.session_class, grant.session_class);
        } else {
            job.grant = grant;
        }
        const auto before = held(job);
        job.sessions.insert(grant.session);
        sessions_[grant.session] = grant;
        apply(job, before, held(job), grant, 1);
        ++uses_[grant.tenant].sessions;
        return further;
    }
    void end(const std::string& session) {
        const Grant grant = sessions_.at(session);
        Job& job = jobs_.at(grant.job);
        const auto before = held(job);
        job.sessions.erase(session);
        sessions_.erase(session);
        apply(job, before, held(job), grant, -1);
        --uses_[grant.tenant].sessions;
        if (job.sessions.empty()) {
            jobs_.erase(grant.job);
        }
    }
    const std::map<std::string, Grant>& sessions() const { return sessions_; }

  private:
    Model(Model&& other, std::shared_ptr<const Policy> policy) : Model(other.devices_, std::move(policy)) {
        jobs_ = std::move(other.jobs_);
        sessions_ = std::move(other.sessions_);
        uses_ = std::move(other.uses_);
        promised_ = other.promised_;
        jobs_on_ = other.jobs_on_;
        alone_ = other.alone_;
    }

    std::set<std::size_t> held(const Job& job) const {
        std::set<std::size_t> devices;
        for (const std::string& session : job.sessions) {
            const auto& seen = sessions_.at(session).seen;
            devices.insert(seen.begin(), seen.end());
            if (job.grant.whole) {
                devices.insert(job.grant.devices.begin(), job.grant.devices.end());
            }
        }
        return devices;
    }

    void apply(const Job& job, const std::set<std::size_t>& before, const std::set<std::size_t>& after,
               const Grant& grant, int sign) {
        const auto quota = [&](std::size_t device) {
            const auto at = std::find(job.grant.devices.begin(), job.grant.devices.end(), device);
            return job.grant.memory_bytes[static_cast<std::size_t>(at - job.grant.devices.begin())];
        };
        const auto times = static_cast<std::uint64_t>(sign);  // modulo 2^64
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            if (before.contains(device) != after.contains(device)) {
                promised_[device] += times * quota(device);
                jobs_on_[device] += times;
                alone_[device] = sign > 0 && job.grant.session_class == SessionClass::exclusive;
                uses_[grant.tenant].gpus += times;
                uses_[grant.tenant].memory_bytes +=
                    times * (quota(device) == 0 ? devices_[device].total_bytes : quota(device));
            }
        }
        for (const std::size_t device : grant.seen) {
            promised_[device] += times * (quota(device) == 0 ? 0 : devices_[device].context_bytes);
        }
    }

    std::vector<Device> devices_;
    std::shared_ptr<const Policy> policy_;
    std::map<std::string, Effective> limits_;
    std::map<std::string, Job> jobs_;
    std::map<std::string, Grant> sessions_;
    std::map<std::string, TenantUse> uses_;
    std::array<std::uint64_t, 8> promised_{};
    std::array<std::size_t, 8> jobs_on_{};
    std::array<bool, 8> alone_{};
};

class Simulation {
  public:
    explicit Simulation(std::uint64_t seed)
        : random_(seed), devices_(random_devices()), model_(devices_, policies()[0]), pool_(devices_, policies()[0]) {}

    void run(std::size_t steps) {
        for (std::size_t step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
            SCOPED_TRACE(step);
            one_step();
        }
        while (!model_.sessions().empty() && !testing::Test::HasFailure()) {
            asked_.reset();
            disturbed_ = false;
            const std::string session = model_.sessions().begin()->first;
            model_.end(session);
            pool_.end(session);
            check();
        }
        EXPECT_TRUE(waiting_.empty());
        EXPECT_TRUE(pool_.queue().empty());
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            EXPECT_EQ(pool_.promised_bytes(device), 0U);
            EXPECT_EQ(pool_.jobs_on(device), 0U);
        }
    }
    std::array<std::size_t, 4> counts{};  // admitted at once, admitted later, refused for good, refused for now

  private:
    struct Waiter {
        Request request;
        Need need;
        std::int64_t deadline_ms = 0;
        std::size_t position = 0;
    };

    static const std::vector<std::shared_ptr<const Policy>>& policies() {
        static const auto all = [] {
            std::vector<std::shared_ptr<const Policy>> made;
            for (const char* text : kPolicies) {
                made.push_back(make_policy(text));
            }
            return made;
        }();
        return all;
    }

    std::size_t dice(std::size_t sides) { return static_cast<std::size_t>(random_() % sides); }

    std::vector<Device> random_devices() {
        std::vector<std::uint64_t> sizes;
        const std::size_t count = 1 + dice(4);
        for (std::size_t i = 0; i < count; ++i) {
            sizes.push_back(std::array<std::uint64_t, 4>{16, 24, 40, 80}[dice(4)]);
        }
        return make_devices(sizes);
    }

    Request random_request() {
        Request request;
        request.session = "s" + std::to_string(++number_);
        request.tenant = std::array{"t0", "t1", "t2"}[dice(3)];
        request.job = dice(3) == 0 ? request.tenant + "/j" + std::to_string(dice(4)) : request.tenant + request.session;
        Wishes& wishes = request.wishes;
        if (dice(4) != 0) {
            wishes.gpus = 1 + dice(dice(8) == 0 ? 5 : 2);
        }
        if (dice(5) != 0) {
            wishes.memory.each_bytes = (1 + dice(dice(4) == 0 ? 80 : 12)) * kGiB;
        }
        if (dice(10) == 0) {
            wishes.session_class = SessionClass::exclusive;
        }
        if (dice(3) == 0) {
            wishes.priority = 40 + dice(20);
        }
        wishes.wait = milliseconds(dice(5) == 0 ? 0 : dice(100'000));
        if (!wishes.gpus && dice(3) == 0) {
            request.visible = std::to_string(dice(4));
        }
        return request;
    }

    void one_step() {
        now_ms_ += static_cast<std::int64_t>(dice(500));
        asked_.reset();
        disturbed_ = false;
        const std::size_t what = dice(100);
        if (what < 40) {
            asked_ = random_request();
            pool_.request(*asked_, now_ms_);
        } else if (what < 85 && !model_.sessions().empty()) {
            const auto session =
                std::next(model_.sessions().begin(), static_cast<std::ptrdiff_t>(dice(model_.sessions().size())));
            const std::string id = session->first;
            model_.end(id);
            pool_.end(id);
        } else if (what < 90 && !waiting_.empty()) {
            const std::size_t which = dice(waiting_.size());
            const std::string id = waiting_[which].request.session;
            waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(which));
            pool_.end(id);
        } else if (what < 98) {
            pool_.advance(now_ms_);
        } else if (dice(10) == 0) {
            const auto policy = policies()[dice(policies().size())];
            rules_ = policy->rules();
            model_.change(policy);
            pool_.set_policy(policy);
            disturbed_ = true;
            for (Waiter& waiter : waiting_) {
                waiter.need = model_.need(waiter.request);
            }
        }
        check();
    }

    void check() {
        std::vector<std::uint64_t> promised_before;
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            promised_before.push_back(model_.promised(device));
        }
        for (const Decision& decision : pool_.take()) {
            if (const auto* grant = std::get_if<Grant>(&decision)) {
                check_grant(*grant);
            } else if (const auto* refusal = std::get_if<Refusal>(&decision)) {
                check_refusal(*refusal);
            } else {
                note_position(std::get<Waiting>(decision));
            }
        }
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            ASSERT_EQ(pool_.promised_bytes(device), model_.promised(device));
            ASSERT_EQ(pool_.jobs_on(device), model_.jobs_on(device));
            ASSERT_EQ(pool_.is_exclusive(device), model_.taken_alone(device));
            ASSERT_LE(model_.promised(device), std::max(model_.capacity(device), promised_before[device]));
            ASSERT_TRUE(!model_.taken_alone(device) || model_.jobs_on(device) == 1);
        }
        check_queue();
    }

    std::vector<Waiter>::iterator find(const std::string& session) {
        return std::find_if(waiting_.begin(), waiting_.end(),
                            [&](const Waiter& each) { return each.request.session == session; });
    }

    void check_grant(const Grant& grant) {
        Waiter waiter;
        if (asked_ && asked_->session == grant.session) {
            waiter = {*asked_, model_.need(*asked_), 0, 0};
            ++counts[0];
        } else {
            const auto found = find(grant.session);
            ASSERT_NE(found, waiting_.end());
            waiter = *found;
            waiting_.erase(found);
            ++counts[1];
        }
        if (!model_.jobs().contains(grant.job)) {
            ASSERT_TRUE(waiter.need.possible);
            ASSERT_TRUE(model_.fits(waiter.request, waiter.need));
            ASSERT_EQ(grant.whole, waiter.need.counted);
            ASSERT_EQ(grant.devices.size(), waiter.need.counted ? waiter.need.gpus : devices_.size());
            for (const std::size_t device : grant.devices) {
                ASSERT_TRUE(!waiter.need.counted || model_.has_room(device, waiter.need));
            }
        }
        const auto first = first_ ? find(*first_) : waiting_.end();
        const bool ahead = first != waiting_.end() && rank(waiter) < rank(*first);
        disturbed_ = model_.grant(grant) || ahead || disturbed_;
    }

    void check_refusal(const Refusal& refusal) {
        ASSERT_FALSE(refusal.message.empty());
        const bool is_new = asked_ && asked_->session == refusal.session;
        const auto found = find(refusal.session);
        ASSERT_TRUE(is_new || found != waiting_.end());
        const Request request = is_new ? *asked_ : found->request;
        const Need need = model_.need(request);
        if (!is_new) {
            ASSERT_TRUE(!need.possible || found->deadline_ms <= now_ms_);
            waiting_.erase(found);
        }
        ++counts[refusal.later ? 3 : 2];
        if (!refusal.later) {
            ASSERT_FALSE(need.possible);
            return;
        }
        // For now: it does not fit, or waits behind others.
        const bool others = std::any_of(waiting_.begin(), waiting_.end(), [&](const Waiter& each) {
            return each.request.job == request.job || rank(each) < rank({request, need, 0, 0});
        });
        ASSERT_TRUE(others || model_.jobs().contains(request.job) || !model_.fits(request, need));
    }

    void note_position(const Waiting& told) {
        auto found = find(told.session);
        if (found == waiting_.end()) {
            ASSERT_TRUE(asked_ && asked_->session == told.session);
            const auto wait = std::min(asked_->wishes.wait, rules_.queue_time);
            waiting_.push_back({*asked_, model_.need(*asked_), now_ms_ + wait.count(), 0});
            found = std::prev(waiting_.end());
        }
        found->position = told.position;
    }

    std::tuple<bool, std::uint64_t, std::uint64_t> rank(const Waiter& waiter) const {
        const bool further = model_.jobs().contains(waiter.request.job);
        return {!further, further ? 0 : kMaxPriority - waiter.need.priority, text_number(waiter.request.session)};
    }

    void check_queue() {
        std::sort(waiting_.begin(), waiting_.end(),
                  [&](const Waiter& one, const Waiter& other) { return rank(one) < rank(other); });
        std::set<std::string> tenants, jobs;
        std::set<std::size_t> in_the_way;  // devices that a session ahead could use
        bool further_ahead = false;
        for (std::size_t i = 0; i < waiting_.size(); ++i) {
            const Waiter& waiter = waiting_[i];
            ASSERT_EQ(waiter.position, i + 1) << describe_queues();
            if (model_.jobs().contains(waiter.request.job)) {
                further_ahead = true;
                continue;
            }
            ASSERT_TRUE(waiter.need.possible);
            const bool held = tenants.contains(waiter.request.tenant) || !jobs.insert(waiter.request.job).second;
            if (!held && !further_ahead) {
                ASSERT_FALSE(model_.fits(waiter.request, waiter.need, in_the_way)) << waiter.request.session;
            }
            tenants.insert(waiter.request.tenant);
            for (std::size_t device = 0; device < devices_.size(); ++device) {
                const auto& which = waiter.need.which;
                if (waiter.need.counted ? bool(waiter.need.suits[device])
                                        : std::count(which.begin(), which.end(), device) > 0) {
                    in_the_way.insert(device);
                }
            }
        }
        check_progress();
    }

    std::string describe_queues() {
        std::string text = "pool:";
        for (const Waiting& each : pool_.queue()) {
            text += fmt::format(" {}", each.session);
        }
        text += ", model:";
        for (const Waiter& each : waiting_) {
            text += fmt::format(" {} ({}, job {}, priority {})", each.request.session, each.position, each.request.job,
                                each.need.priority);
        }
        return text;
    }

    // What the first of the queue lacks does not grow.
    void check_progress() {
        std::optional<std::string> first;
        std::vector<std::pair<std::size_t, std::uint64_t>> lack;
        if (!waiting_.empty() && !model_.jobs().contains(waiting_[0].request.job) && waiting_[0].need.counted &&
            model_.within_limits(waiting_[0].request, waiting_[0].need)) {
            first = waiting_[0].request.session;
            lack = model_.lack(waiting_[0].need);
        }
        if (first && first == first_ && !disturbed_) {
            for (std::size_t i = 0; i < lack.size(); ++i) {
                ASSERT_LE(lack[i], lack_[i]) << *first;
            }
        }
        first_ = first;
        lack_ = lack;
    }

    std::mt19937_64 random_;
    std::vector<Device> devices_;
    Rules rules_ = policies()[0]->rules();
    Model model_;
    Pool pool_;
    std::vector<Waiter> waiting_;
    std::optional<Request> asked_;
    bool disturbed_ = false;  // in this step something happened that may make the first of the queue lack more
    std::optional<std::string> first_;
    std::vector<std::pair<std::size_t, std::uint64_t>> lack_;
    std::int64_t now_ms_ = 0;
    std::uint64_t number_ = 0;
};

TEST(PoolSimulation, RandomStepsKeepThePromises) {
    std::array<std::size_t, 4> counts{};
    for (std::size_t round = 0; round < kRounds && !HasFailure(); ++round) {
        SCOPED_TRACE(round);
        Simulation simulation(round + 1);
        simulation.run(kStepsEach);
        for (std::size_t i = 0; i < counts.size(); ++i) {
            counts[i] += simulation.counts[i];
        }
    }
    // The simulation reaches all kinds of decisions often.
    for (std::size_t count : counts) {
        EXPECT_GT(count, kRounds * kStepsEach / 200);
    }
    RecordProperty("admitted_at_once", static_cast<int>(counts[0]));
    RecordProperty("admitted_later", static_cast<int>(counts[1]));
    RecordProperty("refused_for_good", static_cast<int>(counts[2]));
    RecordProperty("refused_for_now", static_cast<int>(counts[3]));
}

}  // namespace
}  // namespace gpupool::policy
