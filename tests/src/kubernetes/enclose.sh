# Makes the namespaces that it runs in those of a node, says so, and stays until its input ends.
# $1: the directory for all that is written, $2: a name below /sys/fs/cgroup that the daemons run in; empty in a machine
# of the node's own, whose cgroups, /run and settings are the node's.
set -eu
dir=$1 daemons=$2

# A kubelet's mounts are seen by the runtime and by pods. Without -n, mount(8) makes a directory of its own in /run, which
# is still the machine's.
mount -n --make-rshared /
if [ -n "$daemons" ]; then
    mount -n -t tmpfs tmpfs /run
fi
for place in /var/lib /var/log; do
    mkdir -p "$dir$place"
    mount --bind "$dir$place" "$place"
done
mkdir -p /var/lib/kubelet

if [ -n "$daemons" ]; then
    # The root of this cgroup namespace is the root of every hierarchy.
    grep -E '^[^ ]+ [^ ]+ cgroup2? ' /proc/mounts > "$dir/cgroups"
    while read -r _ at kind options _; do
        umount "$at"
        mount -t "$kind" -o "$options" "$kind" "$at"
        mkdir "$at/$daemons"
        for file in cpuset.cpus cpuset.mems; do
            if [ "$kind" = cgroup ] && [ -e "$at/$file" ]; then
                cat "$at/$file" > "$at/$daemons/$file"
            fi
        done
        echo $$ > "$at/$daemons/cgroup.procs"
        # As the root of a machine, it has a real-time budget (CONFIG_RT_GROUP_SCHED).
        if [ -e "$at/cpu.rt_runtime_us" ]; then
            echo 300000 > "$at/cpu.rt_runtime_us" || true
        fi
    done < "$dir/cgroups"
    mount -t bpf bpf /sys/fs/bpf

    # A kubelet writes these where they hold anything else, and they are the machine's
    # (`setupKernelTunables` of pkg/kubelet/cm/container_manager_linux.go).
    mkdir "$dir/sysctl"
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        file="$dir/sysctl/$(basename "${setting%=*}")"
        echo "${setting#*=}" > "$file"
        mount --bind "$file" "/proc/sys/${setting%=*}"
    done
fi

# The node's own address, and that of the service `kubernetes`.
ip link set lo up
ip address replace 198.18.1.1/32 dev lo
ip address replace 10.96.0.1/32 dev lo

echo ready
exec cat
