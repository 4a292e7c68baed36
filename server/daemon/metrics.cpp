#include "server/daemon/metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <string_view>

namespace gpupool::daemon {

namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;
using prometheus::MetricType;

constexpr double kMillisecondsPerSecond = 1000;

class Family {
  public:
    Family(std::string name, std::string help, MetricType type)
        : family_{"gpupool_" + std::move(name), std::move(help), type, {}} {}

    void add(Labels labels, double value) {
        prometheus::ClientMetric& metric = next(std::move(labels));
        (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    }
    void add(Labels labels, std::uint64_t value) { add(std::move(labels), static_cast<double>(value)); }
    prometheus::ClientMetric& next(Labels labels) {
        family_.metric.emplace_back().label = std::move(labels);
        return family_.metric.back();
    }
    [[nodiscard]] prometheus::MetricFamily& get() { return family_; }

  private:
    prometheus::MetricFamily family_;
};

Family gauge(std::string name, std::string help) {
    return {std::move(name), std::move(help), MetricType::Gauge};
}
Family counter(std::string name, std::string help) {
    return {std::move(name), std::move(help), MetricType::Counter};
}

class Families {
  public:
    template <class... Each>
    void take(Each&... families) {
        (families_.push_back(std::move(families.get())), ...);
    }
    [[nodiscard]] std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

  private:
    std::vector<prometheus::MetricFamily> families_;
};

// What a tenant or a session has used, the same for both.
class UsedFamilies {
  public:
    explicit UsedFamilies(const std::string& prefix, const std::string& of)
        : gpu_seconds_(counter(prefix + "_gpu_seconds_total", "GPUs times seconds that " + of + " has had them")),
          byte_seconds_(counter(prefix + "_memory_byte_seconds_total", "Device memory in use times seconds, of " + of)),
          copied_(counter(prefix + "_copied_bytes_total", "Bytes copied to devices (in) and back (out) by " + of)) {}

    void add(const Labels& labels, const policy::UsageAmounts& used) {
        gpu_seconds_.add(labels, static_cast<double>(used.gpu_ms) / kMillisecondsPerSecond);
        byte_seconds_.add(labels, used.byte_seconds);
        for (const auto& [direction, bytes] : {std::pair("in", used.bytes_in), std::pair("out", used.bytes_out)}) {
            Labels with_direction = labels;
            with_direction.push_back({"direction", direction});
            copied_.add(std::move(with_direction), bytes);
        }
    }
    void give(Families& families) { families.take(gpu_seconds_, byte_seconds_, copied_); }

  private:
    Family gpu_seconds_, byte_seconds_, copied_;
};

void add_devices(const MetricsSnapshot& snapshot, Families& families) {
    Family total = gauge("device_memory_bytes", "Memory of the device");
    Family used = gauge("device_memory_used_bytes", "Device memory that sessions use");
    Family promised = gauge("device_promised_bytes", "Device memory that jobs were promised, contexts included");
    Family utilization = gauge("device_utilization_ratio", "Part of the time that some kernel ran, by NVML");
    Family temperature = gauge("device_temperature_celsius", "Temperature of the device, by NVML");
    for (std::size_t i = 0; i < snapshot.devices.size(); ++i) {
        const auto& device = snapshot.devices[i];
        const Labels labels{{"device", std::to_string(i)}, {"uuid", device.uuid}};
        total.add(labels, device.total_bytes);
        used.add(labels, device.used_bytes);
        promised.add(labels, device.promised_bytes);
        if (device.utilization_percent) {
            utilization.add(labels, *device.utilization_percent / 100.0);
        }
        if (device.temperature_celsius) {
            temperature.add(labels, static_cast<double>(*device.temperature_celsius));
        }
    }
    families.take(total, used, promised, utilization, temperature);
}

void add_sessions(const MetricsSnapshot& snapshot, Families& families) {
    Family memory = gauge("session_memory_bytes", "Device memory that a running session uses of a device");
    UsedFamilies used("session", "a running session");
    const std::size_t count = std::min(snapshot.sessions.size(), kMaxSessionSeries);
    for (std::size_t i = 0; i < count; ++i) {
        const auto& session = snapshot.sessions[i];
        const Labels labels{{"session", session.id}, {"tenant", session.tenant}};
        for (const auto& [device, bytes] : session.memory_bytes) {
            Labels with_device = labels;
            with_device.push_back({"device", std::to_string(device)});
            memory.add(std::move(with_device), bytes);
        }
        used.add(labels, session.used);
    }
    families.take(memory);
    used.give(families);
}

// What a tenant has at the moment.
struct Held {
    std::uint64_t sessions = 0;
    std::uint64_t memory_bytes = 0;
};

std::map<std::string, Held> held_by_tenants(const MetricsSnapshot& snapshot) {
    std::map<std::string, Held> held;
    for (const auto& [name, used] : snapshot.tenants) {
        held[name];  // a tenant whose sessions have ended has 0
    }
    for (const auto& session : snapshot.sessions) {
        const auto own = held.find(session.tenant);
        Held& of = own == held.end() ? held[EventCounts::kOtherTenants] : own->second;
        ++of.sessions;
        for (const auto& [device, bytes] : session.memory_bytes) {
            of.memory_bytes += bytes;
        }
    }
    return held;
}

void add_tenants(const MetricsSnapshot& snapshot, Families& families) {
    Family sessions = gauge("tenant_sessions", "Running sessions of the tenant");
    Family memory = gauge("tenant_memory_bytes", "Device memory that the tenant's sessions use");
    for (const auto& [name, held] : held_by_tenants(snapshot)) {
        sessions.add({{"tenant", name}}, held.sessions);
        memory.add({{"tenant", name}}, held.memory_bytes);
    }
    UsedFamilies used("tenant", "all sessions of the tenant, those that have ended too");
    for (const auto& [name, amounts] : snapshot.tenants) {
        used.add({{"tenant", name}}, amounts);
    }
    families.take(sessions, memory);
    used.give(families);
}

void add_events(const EventCounts& events, Families& families) {
    Family admissions = counter("admissions_total", "Sessions that were admitted or refused");
    Family ends = counter("sessions_ended_total", "Sessions that have ended, by the cause");
    for (const auto& [tenant, counts] : events.tenants()) {
        admissions.add({{"tenant", tenant}, {"result", "admitted"}}, counts.admitted);
        admissions.add({{"tenant", tenant}, {"result", "refused"}}, counts.refused);
        for (std::size_t cause = 0; cause < kEndCauses; ++cause) {
            const std::string_view name = name_of(static_cast<EndCause>(cause));
            ends.add({{"tenant", tenant}, {"cause", std::string(name)}}, counts.ended[cause]);
        }
    }
    families.take(admissions, ends);
}

void add_queue(const MetricsSnapshot& snapshot, Families& families) {
    Family length = gauge("queue_length", "Sessions that wait for room");
    length.add({}, static_cast<std::uint64_t>(snapshot.queue_length));
    Family waited("queue_wait_seconds", "How long admitted sessions had waited for room", MetricType::Histogram);
    const WaitTimes& waits = snapshot.events.waits();
    auto& histogram = waited.next({}).histogram;
    for (std::size_t i = 0; i < waits.counts.size(); ++i) {
        histogram.sample_count += waits.counts[i];
        const double bound = i < WaitTimes::kBoundsMs.size()
                                 ? static_cast<double>(WaitTimes::kBoundsMs[i]) / kMillisecondsPerSecond
                                 : std::numeric_limits<double>::infinity();
        histogram.bucket.push_back({histogram.sample_count, bound});
    }
    histogram.sample_sum = static_cast<double>(waits.sum_ms) / kMillisecondsPerSecond;
    families.take(length, waited);
}

}  // namespace

std::string metrics_text(const MetricsSnapshot& snapshot) {
    Families families;
    Family build = gauge("build_info", "1, with the server's version");
    build.add({{"version", snapshot.version}}, 1.0);
    families.take(build);
    add_devices(snapshot, families);
    add_tenants(snapshot, families);
    add_sessions(snapshot, families);
    add_queue(snapshot, families);
    add_events(snapshot.events, families);
    return families.text();
}

}  // namespace gpupool::daemon
