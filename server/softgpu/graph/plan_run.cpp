#include "server/softgpu/graph/plan_run.h"

#include <system_error>
#include <thread>

#include "common/mutex.h"
#include "server/softgpu/graph/payload.h"

namespace gpupool::softgpu {
namespace {

// At most this many helpers; further ready steps wait for one to end.
constexpr std::size_t kMaxHelpers = 31;

void reach_once(Moment& moment) {
    if (!moment.is_reached()) {
        moment.reach();
    }
}

}  // namespace

PlanRun::PlanRun(Context& context) : context_(context), done_(std::make_shared<Moment>()) {}

PlanRun::~PlanRun() {
    end_use();
    reach_all();
}

void PlanRun::end_use() {
    for (const auto& memory : used_) {
        memory->end_launch();
    }
    used_.clear();
}

void PlanRun::uses(std::shared_ptr<GraphMemory> memory) {
    memory->begin_launch();
    used_.push_back(std::move(memory));
}

void PlanRun::reach_all() {
    for (const auto& moment : moments_) {
        if (moment != nullptr) {
            reach_once(*moment);
        }
    }
    reach_once(*done_);
}

void PlanRun::take(std::shared_ptr<const Plan> plan, std::shared_ptr<Moment> previous) {
    plan_ = std::move(plan);
    previous_ = std::move(previous);
    moments_.resize(plan_->steps.size());
    for (std::size_t i = 0; i < moments_.size(); ++i) {
        const Payload* payload = plan_->steps[i].payload.get();
        const auto* record = payload == nullptr ? nullptr : std::get_if<RecordPayload>(payload);
        if (record == nullptr) {
            continue;
        }
        moments_[i] = std::make_shared<Moment>();
        record->event->captured = nullptr;
        const Lock lock(record->event->mutex);
        record->event->moment = moments_[i];
    }
}

void PlanRun::take_body(std::shared_ptr<const Plan> plan) {
    plan_ = std::move(plan);
    moments_.resize(plan_->steps.size());
    body_ = true;
}

CUresult PlanRun::run_conditional(const Plan::Conditional& conditional) {
    const auto run_body = [&](std::size_t which) {
        auto body = std::make_shared<PlanRun>(context_);
        body->take_body(conditional.bodies[which]);
        return body->run();
    };
    const std::uint32_t value = conditional.condition->value();
    CUresult result = CUDA_SUCCESS;
    if (conditional.type == CU_GRAPH_COND_TYPE_WHILE) {
        while (result == CUDA_SUCCESS && conditional.condition->value() != 0 && !context_.stop.load()) {
            result = run_body(0);
        }
        return result;
    }
    // An IF node's second graph is for a condition that is zero.
    const std::uint64_t which = conditional.type == CU_GRAPH_COND_TYPE_SWITCH ? value : value == 0 ? 1 : 0;
    return which < conditional.bodies.size() ? run_body(which) : result;
}

CUresult PlanRun::run_step(std::uint32_t step) {
    const Plan::Step& made = plan_->steps[step];
    if (made.conditional != nullptr) {
        return run_conditional(*made.conditional);
    }
    return made.payload == nullptr ? CUDA_SUCCESS : run_payload(*made.payload, context_, moments_[step]);
}

CUresult PlanRun::run() {
    if (previous_ != nullptr) {
        previous_->wait(context_.stop);
    }
    for (const auto& condition : plan_->conditions) {
        if (!body_) {
            condition->assign_default();
        }
    }
    for (const auto& memory : free_first_) {
        memory->free();
    }
    UniqueLock lock(mutex_);
    remaining_ = plan_->steps.size();
    for (std::uint32_t i = 0; i < remaining_; ++i) {
        missing_.push_back(plan_->steps[i].dependency_count);
        if (missing_[i] == 0) {
            ready_.push_back(i);
        }
    }
    while (remaining_ != 0) {
        work(lock);
        changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return remaining_ == 0 || !ready_.empty(); });
    }
    changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return helpers_ == 0; });
    lock.unlock();
    // Poison the context before the events are reached, so that a woken thread sees the fault.
    if (result_ != CUDA_SUCCESS) {
        context_.poison(result_);
    }
    end_use();
    reach_all();
    return result_;
}

// Runs steps until none is ready. Unlocks while a step runs.
void PlanRun::work(UniqueLock& lock) {
    while (!ready_.empty()) {
        const std::uint32_t step = ready_.front();
        ready_.pop_front();
        start_helpers();
        if (result_ == CUDA_SUCCESS && !context_.stop.load()) {
            CUresult result = CUDA_SUCCESS;
            {
                const Unlocked unlocked(lock, mutex_);
                result = run_step(step);
            }
            if (result_ == CUDA_SUCCESS) {
                result_ = result;
            }
        }
        for (const std::uint32_t next : plan_->steps[step].dependents) {
            if (--missing_[next] == 0) {
                ready_.push_back(next);
            }
        }
        --remaining_;
        changed_.notify_all();
    }
}

// Starts a helper for every ready step beside the one that the caller is about to run.
void PlanRun::start_helpers() {
    while (ready_.size() > starting_ && helpers_ < kMaxHelpers) {
        try {
            std::thread([self = shared_from_this()] {
                UniqueLock lock(self->mutex_);
                --self->starting_;
                self->work(lock);
                --self->helpers_;
                self->changed_.notify_all();
            }).detach();
        } catch (const std::system_error&) {
            return;  // no thread can be created; the running ones take the step later
        }
        ++helpers_;
        ++starting_;
    }
}

}  // namespace gpupool::softgpu
