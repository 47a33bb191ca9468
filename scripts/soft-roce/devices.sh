# Two Soft-RoCE devices, rxe0 (10.2.0.1) and rxe1 (10.2.0.2), on the ends of a virtual cable. Both are in one network
# namespace, so rules force the packets between them onto the cable.
ip link add va type veth peer name vb
for end in all default va vb; do
    for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
        echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/$end/${setting%=*}"
    done
done
for end in va vb; do
    echo 0 >"/proc/sys/net/ipv6/conf/$end/accept_dad"
    # Room for the largest path MTU, 4096, and its headers.
    ip link set "$end" mtu 4200 up
done
ip addr add 10.2.0.1/24 dev va
ip addr add 10.2.0.2/24 dev vb
ip rule add pref 100 lookup local
ip rule del pref 0
ip rule add pref 5 from 10.2.0.1 to 10.2.0.1 lookup local
ip rule add pref 6 from 10.2.0.2 to 10.2.0.2 lookup local
ip rule add pref 10 iif lo to 10.2.0.2 lookup 1001
ip route add 10.2.0.2 dev va src 10.2.0.1 table 1001
ip rule add pref 11 iif lo to 10.2.0.1 lookup 1002
ip route add 10.2.0.1 dev vb src 10.2.0.2 table 1002
rdma link add rxe0 type rxe netdev va && rdma link add rxe1 type rxe netdev vb || return 1
# The addresses over IPv4 come a moment later.
for device in rxe0 rxe1; do
    for _ in $(seq 40); do
        grep -qs '^0000:0000:0000:0000:0000:ffff:' "/sys/class/infiniband/$device/ports/1/gids/"* && break
        sleep 0.1
    done
done
